"""Fill-in-the-middle samples of Megatron-LM's GPTFIMDataset, for tests/data/fill_in_middle_test.cpp.

    pip install torch megatron-core transformers
    python make_fim_fixtures.py MEGATRON_LM     # a checkout; rewrites the files beside this one

fim_tokenizer.json is the small GPT-2 tokenizer of ../tokenizers with the tokens of fill-in-the-middle; code.bin and
code.idx are texts in it; fim.json has the flags of `bevatron data samples --fim-one-stream` and what it must print.
"""
import importlib.util
import json
import os
import random
import shutil
import sys
import tempfile

import numpy
from transformers import PreTrainedTokenizerFast

from make_data_fixtures import HERE, Tokenizer, plain, write_pair
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.tokenizers.text.libraries.huggingface_tokenizer import HuggingFaceTokenizer

SPECIAL = ["<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<file_sep>"]


class Library(HuggingFaceTokenizer):
    """Megatron's tokenizer of a single file."""

    def __init__(self, path):
        with open(path) as file:
            special = [token["content"] for token in json.load(file)["added_tokens"]]
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=path, eos_token="<|endoftext|>",
                                                 additional_special_tokens=special)
        self.include_special_tokens = False


def make_tokenizer():
    with open(os.path.join(HERE, "../tokenizers/gpt2.json")) as file:
        tokenizer = json.load(file)
    last = max(max(tokenizer["model"]["vocab"].values()), max(t["id"] for t in tokenizer["added_tokens"]))
    for i, token in enumerate(SPECIAL):
        tokenizer["added_tokens"].append({"id": last + 1 + i, "content": token, "single_word": False, "lstrip": False,
                                          "rstrip": False, "normalized": False, "special": True})
    path = os.path.join(HERE, "fim_tokenizer.json")
    with open(path, "w") as out:
        json.dump(tokenizer, out, ensure_ascii=True, separators=(",", ":"))
    return Library(path)


def make_code(library, rng):
    """Documents of files: words, code, characters of several bytes, and nothing at all."""
    words = ["the", "def f(x):\n", "  return", " x + 1", "\u00e9t\u00e9", "\u4e2d\u6587", "\U0001f600", " wise", "\n",
             "# skip", "0123", " a", "\t"]
    sep, eod = library.tokens_to_ids(["<file_sep>", "<|endoftext|>"])
    documents = []
    for _ in range(40):
        ids = []
        for part in range(rng.choice([1, 1, 2, 4])):
            text = "".join(rng.choice(words) for _ in range(rng.choice([0, 1, 3, 10, 25])))
            ids += ([sep] if part else []) + library.text_to_ids(text)
        # Cut characters, too: ids of single bytes end a document in the middle of one.
        documents.append([ids[:rng.randrange(1, len(ids) + 1)] + [eod] if ids and rng.random() < 0.3 else ids + [eod]])
    write_pair(os.path.join(HERE, "code"), documents, numpy.uint16)
    return eod


def samples(module, library, eod, flags, folder):
    tokenizer = Tokenizer(len(library.tokenizer), eod)
    tokenizer._tokenizer = library
    config = module.GPTFIMDatasetConfig(
        random_seed=flags["seed"], sequence_length=flags["seq-length"], blend=([os.path.join(folder, "code")], None),
        split="1", tokenizer=tokenizer, reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
        create_attention_mask=False, fim_rate=flags["fim-rate"], fim_spm_rate=flags["fim-spm-rate"],
        fim_split_sample=flags.get("fim-split-sample"), fim_fragment_rate=flags.get("fim-fragment-rate"),
        fim_no_prefix=flags.get("fim-no-prefix"),
        fim_extra_tokens={"prefix": "<fim_prefix>", "middle": "<fim_middle>", "suffix": "<fim_suffix>",
                          "pad": "<fim_pad>", "eod": "<|endoftext|>"})
    data = BlendedMegatronDatasetBuilder(module.GPTFIMDataset, [flags["samples"], 0, 0], lambda: True, config).build()[0]
    return [{"tokens": plain(sample["tokens"]), "labels": plain(sample["labels"])}
            for sample in (data[i] for i in range(flags["samples"]))]


def main(checkout):
    path = os.path.join(checkout, "megatron/training/datasets/fim_dataset.py")
    spec = importlib.util.spec_from_file_location("fim_dataset", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    library = make_tokenizer()
    eod = make_code(library, random.Random(5))
    base = {"seed": 1234, "seq-length": 24, "samples": 30, "fim-rate": 0.5, "fim-spm-rate": 0.5}
    cases = [{}, {"fim-rate": 1.0, "seed": 7}, {"fim-rate": 0.0}, {"fim-rate": 0.9, "fim-spm-rate": 1.0},
             {"fim-rate": 1.0, "fim-spm-rate": 0.0, "seq-length": 63, "samples": 12},
             {"fim-rate": 0.8, "fim-split-sample": "<file_sep>", "fim-fragment-rate": 0.6, "samples": 60},
             {"fim-rate": 1.0, "fim-split-sample": "<file_sep>", "fim-fragment-rate": 1.0, "fim-no-prefix": "# skip"},
             {"fim-rate": 0.3, "fim-no-prefix": "the", "seq-length": 5, "samples": 90}]
    with open(os.path.join(HERE, "fim.json"), "w") as out:
        lines = []
        for changes in cases:
            flags = {**base, **changes}
            with tempfile.TemporaryDirectory() as folder:
                for kind in (".bin", ".idx"):
                    shutil.copy(os.path.join(HERE, "code" + kind), folder)
                expected = samples(module, library, eod, flags, folder)
            lines.append(json.dumps({"flags": flags, "expected": expected}, separators=(",", ":")))
        out.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])
