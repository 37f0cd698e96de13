"""Sentence files, and BERT and T5 samples made of them by megatron-core, for tests/data/masked_samples_test.cpp.

    pip install torch megatron-core
    python make_masked_fixtures.py                              # rewrites masked_* beside this file
    python make_masked_fixtures.py --fuzz 200 BEVATRON [FIRST]  # compares random cases with the program

masked_samples.json has one line for each case: the flags of `bevatron data samples`, and the JSON that it must print.
Where megatron-core 0.16.1 has no answer of its own, it is made to give one:
  - a number of samples of None, which build_mapping refuses, means one epoch, as the code around it intends;
  - lengths of permuted runs come from the sample's generator, not from the process's, which nothing seeds;
  - types and padding_mask are 0 where BERT's padding is, not the id of the pad token (which a table of two types has
    no row for); nothing changes where that is 0.
"""
import contextlib
import json
import logging
import os
import random
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
    from megatron.core.datasets import helpers
    from megatron.core.datasets.bert_dataset import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig
    from megatron.core.datasets.utils import get_blend_from_list

from make_data_fixtures import HERE, flags, plain, write_pair

LONGEST_SENTENCE = 512


class SampleState(numpy.random.RandomState):
    """Remembers the generator of the sample that is being made."""
    current = None

    def __init__(self, seed):
        super().__init__(seed)
        SampleState.current = self


build_mapping = helpers.build_mapping


def guarded_mapping(documents, sizes, epochs, samples, length, short, seed, verbose, least):
    def usable(first, end):
        return end - first >= least and (end - first == 1 or max(sizes[first:end]) <= LONGEST_SENTENCE)

    if samples != 0 and not any(usable(a, b) for a, b in zip(documents, documents[1:])):
        raise ValueError("build_mapping would not end")
    samples = 2 ** 63 - 1 if samples is None else samples
    return build_mapping(documents, sizes, epochs, samples, length, short, seed, verbose, least)


helpers.build_mapping = guarded_mapping
numpy.random.RandomState = SampleState
numpy.random.choice = lambda *args, **kwargs: SampleState.current.choice(*args, **kwargs)
torch.distributed.get_rank = lambda: 0


class Tokenizer:
    """What the datasets ask of a tokenizer, read from a list of tokens as the program reads it."""

    def __init__(self, tokens, extra_ids):
        def find(*names):
            return next((tokens.index(name) for name in names if name in tokens), None)

        tokens = list(tokens)
        self.cls, self.sep, self.mask = find("[CLS]"), find("[SEP]"), find("[MASK]")
        self.bos = find("[BOS]") if find("[BOS]") is not None else self.cls
        self.eos = self.eod = find("[EOS]") if find("[EOS]") is not None else self.sep
        if find("[PAD]") is not None:
            self.pad = find("[PAD]")
        wanted = [f"<extra_id_{i}>" for i in range(extra_ids)] or [t for t in tokens if t.startswith("<extra_id_")]
        tokens += [token for token in wanted if token not in tokens]
        self.additional_special_tokens_ids = [tokens.index(token) for token in wanted]
        self.inv_vocab = dict(enumerate(tokens))
        self.unique_identifiers = OrderedDict(tokens=tokens)


def sample_of(case, dataset, index):
    sample = {key: plain(value) for key, value in dataset[index].items() if key != "dataset_id"}
    if case["dataset"] == "bert":
        pad = getattr(dataset, "datasets", [dataset])[0]._pad_token_id
        assert pad != 1, "a pad token of 1 makes the padding mask all ones"
        end = len(sample["types"])
        while end > 0 and sample["types"][end - 1] == pad and sample["padding_mask"][end - 1] == pad:
            end -= 1
        sample["types"][end:] = [0] * (len(sample["types"]) - end)
        sample["padding_mask"] = [0 if mask == pad else 1 for mask in sample["padding_mask"]]
    return sample


def expected(case, folder, cache):
    """What megatron-core gives for a case, with the keys of `data samples`."""
    def blend(name):
        words = case.get(name)
        if not words:
            return None
        prefixes, weights = get_blend_from_list(words)
        return [os.path.join(folder, prefix) for prefix in prefixes], weights

    bert = case["dataset"] == "bert"
    with open(os.path.join(folder, case["tokenizer"])) as lines:
        tokens = lines.read().split("\n")[:-1]
    tokenizer = Tokenizer(tokens, case.get("vocab-extra-ids", 0))
    own = [blend(name) for name in ("train-data-path", "valid-data-path", "test-data-path")]
    shared = blend("data-path")
    values = dict(
        random_seed=case["seed"], sequence_length=case["seq-length"], blend=shared,
        blend_per_split=own if any(own) else None, split=case["split"] if shared else None, tokenizer=tokenizer,
        path_to_cache=cache, masking_probability=case["mask-prob"], short_sequence_probability=case["short-seq-prob"],
        masking_max_ngram=case["masking-max-ngram"], masking_do_full_word=case["masking-full-word"],
        masking_do_permutation=case["masking-permutation"], masking_use_longer_ngrams=case["masking-longer-ngrams"],
        masking_use_geometric_distribution=case["masking-geometric"])
    if bert:
        kind, config = BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig(
            classification_head=case["bert-binary-head"], **values)
    else:
        kind, config = T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig(
            sequence_length_decoder=case["decoder-seq-length"], **values)
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
            entry["datasets"] = [{"sample_index": plain(member.sample_index)} for member in dataset.datasets]
        else:
            entry["sample_index"] = plain(dataset.sample_index)
        entry["samples"] = [sample_of(case, dataset, i) for i in range(min(case["dump"], len(dataset)))]
        out[name] = entry
    return out


def random_sentence(rng, vocab, longest):
    return [rng.randrange(vocab) for _ in range(rng.randrange(longest + 1))]


def random_documents(rng, documents, longest, vocab, most_sentences=9):
    out = []
    for _ in range(documents):
        count = rng.choice([0, 1, 2, 3, rng.randrange(most_sentences + 1)])
        document = [random_sentence(rng, vocab, longest) for _ in range(count)]
        if document and rng.random() < 0.05:
            document[rng.randrange(count)] = [rng.randrange(vocab) for _ in range(rng.choice([512, 513]))]
        out.append(document)
    return out


def random_vocabulary(rng, words, pad_first=True):
    tokens = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += [t for t in ("[BOS]", "[EOS]") if rng.random() < 0.5]
    tokens += [f"<extra_id_{i}>" for i in range(rng.choice([0, 3, 60]))]
    tokens += [("##" if rng.random() < 0.5 else "") + f"w{i}" for i in range(words)]
    rng.shuffle(tokens)
    if pad_first:
        return ["[PAD]"] + tokens
    at = rng.randrange(2, len(tokens))
    return tokens[:at] + (["[PAD]"] if rng.random() < 0.8 else []) + tokens[at:]


def write_vocabulary(path, tokens):
    with open(path, "w") as out:
        out.write("".join(token + "\n" for token in tokens))


BERT = {"dataset": "bert", "tokenizer": "masked_vocab.txt", "data-path": ["masked_a"], "split": "80,15,5",
        "seq-length": 24, "seed": 1234, "sizes": [20, 3, 1], "dump": 8, "mask-prob": 0.15, "short-seq-prob": 0.1,
        "masking-max-ngram": 3, "masking-full-word": True, "masking-permutation": False,
        "masking-longer-ngrams": False, "masking-geometric": False, "bert-binary-head": True}
T5 = {**BERT, "dataset": "t5", "masking-max-ngram": 10, "masking-geometric": True, "decoder-seq-length": 24,
      "vocab-extra-ids": 20}
del T5["bert-binary-head"]


def make_fixtures():
    os.chdir(HERE)
    rng = random.Random(11)
    write_vocabulary("masked_vocab.txt", random_vocabulary(rng, 40))
    write_vocabulary("masked_vocab_odd.txt", [f"##x{i}" for i in range(6)] + [
        "<extra_id_2>", "[SEP]", "[EOS]", "<extra_id_0>", "[PAD]", "[UNK]", "<extra_id_1>", "[CLS]", "[BOS]"] + [
        f"y{i}" for i in range(30)] + ["[MASK]"])
    write_pair("masked_a", random_documents(rng, 40, 9, 44))
    write_pair("masked_b", random_documents(rng, 25, 14, 44) + [[[5] * 513, [6]], [[7] * 600], [[8] * 512, [9, 10]]])
    write_pair("masked_c", random_documents(rng, 60, 4, 44))
    odd = {"tokenizer": "masked_vocab_odd.txt"}
    cases = [
        BERT,
        {**BERT, "bert-binary-head": False, "seed": 0, "sizes": [70, 9, 0], "split": "60,40,0"},
        {**BERT, "masking-geometric": True, "seq-length": 40, "data-path": ["masked_b"], "split": "1,0,0",
         "sizes": [30, 0, 0], "mask-prob": 0.5, "dump": 16},
        {**BERT, "masking-permutation": True, "mask-prob": 0.3, "masking-longer-ngrams": True, "dump": 16},
        {**BERT, "masking-full-word": False, "masking-longer-ngrams": True, "masking-max-ngram": 9, "seed": 7},
        {**BERT, "short-seq-prob": 1.0, "mask-prob": 0.4, "data-path": ["masked_b"], "split": "70,30,0",
         "sizes": [40, 10, 0], "dump": 16},
        {**BERT, **odd, "short-seq-prob": 0, "mask-prob": 0.9, "seed": 99, "dump": 16},
        {**BERT, "seq-length": 5, "seed": 2147483647, "short-seq-prob": 0.5, "sizes": [99, 1, 1]},
        {**BERT, "sizes": [None, None, None], "data-path": ["masked_c"], "split": "70,20,10", "mask-prob": 0.01},
        {**BERT, "data-path": ["0.3", "masked_a", "0.7", "masked_c"], "sizes": [55, 6, 0], "split": "70,30,0"},
        {**BERT, "vocab-extra-ids": 30, "mask-prob": 0.6, "masking-max-ngram": 1, "dump": 16},
        T5,
        {**T5, "data-path": ["masked_b"], "split": "1,0,0", "sizes": [40, 0, 0], "seq-length": 48,
         "decoder-seq-length": 60, "mask-prob": 0.5, "dump": 16},
        {**T5, **odd, "vocab-extra-ids": 25, "masking-permutation": True, "masking-geometric": False,
         "masking-max-ngram": 4, "mask-prob": 0.25, "decoder-seq-length": 31, "dump": 16},
        {**T5, "masking-full-word": False, "masking-geometric": False, "masking-max-ngram": 2, "seq-length": 4,
         "seed": 5, "sizes": [150, 2, 2]},
        {**T5, "short-seq-prob": 0.9, "mask-prob": 0.8, "decoder-seq-length": 50, "dump": 16, "seed": 2147483646},
        {**T5, "data-path": ["masked_a", "masked_c", "masked_b"], "sizes": [70, None, 0], "split": "60,40,0"},
    ]
    with open("masked_samples.json", "w") as out:
        out.write("[\n")
        for i, case in enumerate(cases):
            with tempfile.TemporaryDirectory() as cache:
                line = {"flags": case, "expected": expected(case, HERE, cache)}
            out.write((",\n" if i else "") + json.dumps(line, separators=(",", ":")))
        out.write("\n]\n")


def random_case(rng, folder):
    pad_first = rng.random() < 0.7
    vocabulary = random_vocabulary(rng, rng.choice([3, 20, 300]), pad_first)
    write_vocabulary(os.path.join(folder, "vocab.txt"), vocabulary)
    names = [f"d{i}" for i in range(rng.choice([1, 1, 1, 2, 3, 9]))]
    for name in names:
        longest = rng.choice([1, 6, 30, 200])
        documents = random_documents(rng, rng.randrange(3, 60), longest, len(vocabulary), rng.choice([3, 9, 40]))
        sure = [[1, 2], [3, 4], [5]]
        write_pair(os.path.join(folder, name), [sure] + documents + [sure] * 2,
                   rng.choice([numpy.uint16, numpy.int32, numpy.int64]))
    weighted = len(names) > 1 and rng.random() < 0.7
    words = []
    for name in names:
        words += [str(round(rng.random() * 9 + 0.01, rng.randrange(1, 9))), name] if weighted else [name]
    if not weighted and len(words) > 1 and len(words) % 2 == 0:
        words.append(names[0])
    sizes = [rng.randrange(0, 300), rng.randrange(0, 50), 0]
    if not weighted and rng.random() < 0.3:
        sizes[0] = None
    base = dict(rng.choice([BERT, T5]))
    geometric = rng.random() < 0.5
    case = {**base, "tokenizer": "vocab.txt", "data-path": words, "split": rng.choice(["50,50,0", "7,3,0", "60,39.5,0"]),
            "seq-length": rng.choice([5, 6, 9, 17, 40, 128, 512]), "seed": rng.choice([0, 1234, rng.randrange(1 << 31)]),
            "sizes": sizes, "dump": 12, "mask-prob": rng.choice([0.15, 0.01, 0.5, 0.99, round(rng.random(), 3) or 0.1]),
            "short-seq-prob": rng.choice([0, 0.1, 0.5, 0.7, 1, 1e-3, 1e-12]),
            "masking-max-ngram": rng.choice([1, 2, 3, 7, 8, 10, 23, 150]), "masking-full-word": rng.random() < 0.7,
            "masking-longer-ngrams": rng.random() < 0.4, "masking-geometric": geometric,
            "masking-permutation": not geometric and rng.random() < 0.5}
    case["vocab-extra-ids"] = rng.choice([1, 5, 30, 100, 500])
    if case["dataset"] == "bert":
        case["bert-binary-head"] = rng.random() < 0.6
    else:
        case["decoder-seq-length"] = rng.choice([8, case["seq-length"], 2 * case["seq-length"] + 2])
    if rng.random() < 0.1 and len(names) > 1:
        case["train-data-path"], case["valid-data-path"] = case.pop("data-path"), [names[0]]
        del case["split"]
    return case


def fuzz(count, program, first):
    same = refused = 0
    for seed in range(first, first + count):
        rng = random.Random(seed)
        with tempfile.TemporaryDirectory() as folder:
            case = random_case(rng, folder)
            words = [program, "data", "samples", *flags(case), "--data-cache-path", "cache"]
            ours = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)
            again = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)
            if ours.stdout != again.stdout:
                print("the cache changes the answer", seed, case)
            try:
                theirs = expected(case, folder, os.path.join(folder, "theirs"))
            except (AssertionError, IndexError, ValueError) as error:
                refused += 1
                if ours.returncode == 0:
                    print("only megatron-core refuses", seed, repr(error)[:200], case)
                elif ours.returncode != 2:
                    print("bevatron fails", seed, ours.returncode, ours.stderr[:300], case)
                continue
            if ours.returncode != 0:
                print("only bevatron refuses", seed, ours.stderr[:300], case)
                continue
            mine = json.loads(ours.stdout)
            for split in ("train", "valid"):
                if mine[split] != theirs[split]:
                    keys = [k for k in theirs[split] if mine[split] and mine[split].get(k) != theirs[split][k]]
                    print("differs", seed, split, keys, case)
                elif theirs[split]:
                    same += len(theirs[split]["samples"])
    print("compared", count, "cases:", same, "samples are the same,", refused, "cases are refused by both")


if __name__ == "__main__":
    if len(sys.argv) >= 4 and sys.argv[1] == "--fuzz":
        fuzz(int(sys.argv[2]), os.path.abspath(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 0)
    else:
        make_fixtures()
