"""Token files and samples made by megatron-core, for tests/data/megatron_test.cpp.

    pip install torch megatron-core
    python make_data_fixtures.py                        # rewrites the files beside this one
    python make_data_fixtures.py --fuzz 200 BEVATRON    # compares random cases with the program

Pairs NAME.bin/.idx come from IndexedDatasetBuilder; samples.json has one line for each case: the flags of
`bevatron data samples`, and the JSON that it must print.
"""
import contextlib
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import OrderedDict

logging.disable()
warnings.filterwarnings("ignore")
import numpy
import torch
with contextlib.redirect_stderr(open(os.devnull, "w")):
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    from megatron.core.datasets.utils import get_blend_from_list

HERE = os.path.dirname(os.path.abspath(__file__))


class Tokenizer:
    """What the datasets ask of a tokenizer; without a pad token they pad with -1."""

    def __init__(self, vocab_size, eod):
        self.vocab_size, self.eod = vocab_size, eod
        self.unique_identifiers = OrderedDict(vocab_size=vocab_size, eod=eod)


def write_pair(prefix, documents, dtype=numpy.uint16, modes=None):
    """documents: lists of sequences, lists of ids; a document may have none."""
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=dtype, multimodal=modes is not None)
    mode = iter(modes or [])
    for document in documents:
        for sequence in document:
            builder.add_item(torch.tensor(sequence), mode=next(mode, 0))
        builder.end_document()
    builder.finalize(prefix + ".idx")


def write_merged(prefix, parts, dtype):
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
    for part in parts:
        builder.add_index(part)
    builder.finalize(prefix + ".idx")


def plain(array):
    return numpy.asarray(array).tolist()


def indices(dataset):
    return {"document_index": plain(dataset.document_index), "sample_index": plain(dataset.sample_index),
            "shuffle_index": plain(dataset.shuffle_index)}


def expected(case, folder):
    """What megatron-core gives for a case, with the keys of `data samples`."""
    def blend(name):
        words = case.get(name)
        if not words:
            return None
        prefixes, weights = get_blend_from_list(words)
        return [os.path.join(folder, prefix) for prefix in prefixes], weights

    own = [blend(name) for name in ("train-data-path", "valid-data-path", "test-data-path")]
    shared = blend("data-path")
    config = GPTDatasetConfig(
        random_seed=case["seed"], sequence_length=case["seq-length"], blend=shared,
        blend_per_split=own if any(own) else None, split=case["split"] if shared else None,
        tokenizer=Tokenizer(case["vocab-size"], case["eod-id"]),
        reset_position_ids=case.get("reset-position-ids", False),
        reset_attention_mask=case.get("reset-attention-mask", False),
        eod_mask_loss=case.get("eod-mask-loss", False), create_attention_mask=True,
        drop_last_partial_validation_sequence=case.get("drop-last-partial-validation-sequence", True),
        add_extra_token_to_sequence=case.get("add-extra-token-to-sequence", True))
    kind = MockGPTDataset if config.mock else GPTDataset
    built = BlendedMegatronDatasetBuilder(kind, case["sizes"], lambda: True, config).build()
    out = {}
    for name, dataset in zip(("train", "valid", "test"), built):
        if dataset is None:
            out[name] = None
            continue
        entry = {"num_samples": len(dataset)}
        if hasattr(dataset, "datasets"):
            entry["dataset_index"] = plain(dataset.dataset_index)
            entry["dataset_sample_index"] = plain(dataset.dataset_sample_index)
            entry["datasets"] = [indices(member) for member in dataset.datasets]
        else:
            entry.update(indices(dataset))
        entry["samples"] = []
        for i in range(min(case["dump"], len(dataset))):
            # megatron-core masks the padding of the first sample that is read in the mask it keeps for all others:
            # what a sample is would depend on which came first.
            for member in getattr(dataset, "datasets", [dataset]):
                member.masks_and_position_ids_are_cached = False
            sample = dataset[i]
            mask = sample["attention_mask"][0]
            # Where a document ends, the next token does not see it.
            cuts = [t for t in range(1, len(mask)) if bool(mask[t, t - 1])]
            entry["samples"].append({
                "tokens": plain(sample["tokens"]), "labels": plain(sample["labels"]),
                "loss_mask": [int(x) for x in sample["loss_mask"]], "position_ids": plain(sample["position_ids"]),
                "document_lengths": [b - a for a, b in zip([0] + cuts, cuts + [len(mask)])]})
        out[name] = entry
    return out


def random_documents(rng, documents, longest, vocab, eod):
    out = []
    for _ in range(documents):
        sequences = []
        for _ in range(rng.choice([0, 1, 1, 1, 1, 2])):
            body = [rng.randrange(vocab) for _ in range(rng.randrange(longest))]
            sequences.append(body + [eod])
        out.append(sequences)
    return out


def flags(case):
    words = []
    for name, value in case.items():
        if value is True:
            words.append("--" + name)
        elif value is False:
            words.append("--no-" + name)
        elif isinstance(value, list):
            words += ["--" + name] + ["none" if item is None else str(item) for item in value]
        else:
            words += ["--" + name, str(value)]
    return words


def make_fixtures():
    os.chdir(HERE)
    rng = random.Random(7)
    write_pair("a", random_documents(rng, 23, 17, 300, 0))
    write_pair("b", random_documents(rng, 9, 40, 300, 0))
    write_pair("c", random_documents(rng, 61, 6, 300, 0))
    write_pair("wide", random_documents(rng, 5, 9, 70000, 69999), numpy.int32)
    write_pair("modes", [[[1, 2, 3], [4]], [], [[5, 6]]], modes=[0, 4, 1])
    write_merged("merged", ["a", "b", "c"], numpy.uint16)
    for kind in (numpy.uint8, numpy.int8, numpy.int16, numpy.int32, numpy.int64, numpy.float64, numpy.float32,
                 numpy.uint16):
        write_pair("type_" + kind.__name__, [[[1, 2], [100]], [[7]]], kind)
    base = {"split": "80,15,5", "seq-length": 8, "seed": 1234, "sizes": [20, 3, 1], "dump": 6, "vocab-size": 300,
            "eod-id": 0}
    cases = [
        {"data-path": ["a"]},
        {"data-path": ["a"], "sizes": [61, 9, 5], "seed": 7},
        {"data-path": ["c"], "sizes": [None, None, None], "split": "969,30,1"},
        {"data-path": ["b"], "sizes": [30, 10, 0], "split": "70,30,0", "reset-position-ids": True,
         "reset-attention-mask": True, "eod-mask-loss": True},
        {"data-path": ["a"], "eod-mask-loss": True, "reset-position-ids": True},
        {"data-path": ["a"], "reset-attention-mask": True, "seq-length": 31, "sizes": [8, 1, 1]},
        {"data-path": ["b"], "sizes": [9, 4, 0], "split": "60,40,0", "drop-last-partial-validation-sequence": False},
        {"data-path": ["a"], "sizes": [40, 6, 2], "add-extra-token-to-sequence": False},
        {"data-path": ["c"], "sizes": [9, 9, 0], "split": "50,50,0", "add-extra-token-to-sequence": False,
         "drop-last-partial-validation-sequence": False},
        {"data-path": ["0.3", "a", "0.5", "b", "0.2", "c"], "sizes": [101, 7, 0], "split": "80,20,0"},
        {"data-path": ["1", "a"], "sizes": [10, 2, 0], "split": "80,20,0"},
        {"data-path": ["a", "b", "c"], "sizes": [50, None, 0], "split": "60,40,0", "seq-length": 4},
        {"data-path": ["3", "a", "1", "b", "4", "c", "1", "a", "5", "b", "9", "c", "2", "a", "6", "b", "5", "c", "3.7",
                       "a"], "sizes": [97, 5, 0], "split": "80,20,0", "dump": 2},
        {"train-data-path": ["0.6", "a", "0.4", "b"], "valid-data-path": ["1", "c"], "sizes": [33, 9, 0]},
        {"data-path": ["wide"], "vocab-size": 70000, "eod-id": 69999, "sizes": [12, 0, 0], "split": "1,0,0"},
    ]
    with open("samples.json", "w") as out:
        out.write("[\n")
        for i, changes in enumerate(cases):
            case = {**base, **changes}
            with tempfile.TemporaryDirectory() as folder:
                for name in os.listdir(HERE):
                    if name.endswith((".bin", ".idx")):
                        shutil.copy(name, folder)
                line = {"flags": case, "expected": expected(case, folder)}
            out.write((",\n" if i else "") + json.dumps(line, separators=(",", ":")))
        out.write("\n]\n")


def fuzz(count, program):
    for seed in range(count):
        rng = random.Random(seed)
        with tempfile.TemporaryDirectory() as folder:
            names = [f"d{i}" for i in range(rng.choice([1, 1, 2, 3, 9, 140]))]
            for name in names:
                documents = random_documents(rng, rng.randrange(3, 60), rng.choice([3, 20, 200]), 500, 0)
                write_pair(os.path.join(folder, name), documents + [[[1, 2, 0]]] * 3)
            weighted = len(names) > 1 and rng.random() < 0.7
            words = []
            for name in names:
                words += [str(round(rng.random() * 9 + 0.01, rng.randrange(1, 9))), name] if weighted else [name]
            sizes = [rng.randrange(1, 400), rng.randrange(1, 50), 0]
            if not weighted and len(words) % 2 == 0:
                words.append(names[0])
            if not weighted and rng.random() < 0.3:
                sizes[0] = None
            case = {"data-path": words, "split": rng.choice(["50,50,0", "7,3,0", "60,39.5,0"]),
                    "seq-length": rng.choice([1, 2, 5, 16, 33]), "seed": rng.randrange(1 << 32), "sizes": sizes,
                    "dump": 9, "vocab-size": 500, "eod-id": 0}
            for name in ("reset-position-ids", "reset-attention-mask", "eod-mask-loss",
                         "drop-last-partial-validation-sequence", "add-extra-token-to-sequence"):
                case[name] = rng.random() < 0.5
            ours = subprocess.run([program, "data", "samples", *flags(case)], cwd=folder, capture_output=True, text=True)
            try:
                theirs = expected(case, folder)
            except (AssertionError, IndexError, ValueError) as error:
                if ours.returncode == 0:
                    print("only megatron-core refuses", seed, repr(error)[:200], case)
                continue
            if ours.returncode != 0:
                print("only bevatron refuses", seed, ours.stderr[:300], case)
                continue
            mine = json.loads(ours.stdout)
            for split in ("train", "valid"):
                if mine[split] != theirs[split]:
                    keys = [k for k in theirs[split] if mine[split] and mine[split].get(k) != theirs[split][k]]
                    print("differs", seed, split, keys, case)
    print("compared", count)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--fuzz":
        fuzz(int(sys.argv[2]), os.path.abspath(sys.argv[3]))
    else:
        make_fixtures()
