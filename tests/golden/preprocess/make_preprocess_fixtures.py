"""Token files as Megatron's tools/preprocess_data.py writes them, for tests/data/preprocess_test.cpp.

    pip install torch megatron-core tokenizers
    python make_preprocess_fixtures.py        # rewrites the files beside this one

The rules for a document are those of the script's Encoder (Megatron-LM d98e8a6); the files are written by
megatron-core's IndexedDatasetBuilder. Made with megatron-core 0.16.1 and tokenizers 0.23.3.
"""
import json
import os

import numpy
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
GPT2 = os.path.join(HERE, "..", "tokenizers", "gpt2.json")

DOCUMENTS = [
    {"title": "One", "text": "Hello world. It is  a test.\nSecond line\t tabbed."},
    {"text": "", "title": ""},  # no sequence, no end of document
    {"text": "nul \u0000 in it, \ud83d\ude00 and caf\u00e9 \u4f60\u597d", "title": "\u00fc"},
    {"text": ["A list.", "", "Of sentences."], "title": ["just one"]},
    {"text": [], "title": "a list without sentences"},
    {"text": "<|endoftext|>", "title": "the end itself", "extra": {"deep": [[[1, 2.5e3, None]]]}},
    {"text": " \n", "title": " ", "number": 123456789012345678901234567890},
    {"title": "keys in another order", "text": "x" * 3000},
]

# Lines that Python's json reads and that json.dumps would not write.
LINES = [
    '{"text": "first", "text": "the last of equal keys", "title": "t"}',
    '{"te\\u0078t" : "a key with an escape", "title":"\\u00e9\\ud83d\\ude00\\/\\b\\f\\"\\\\"}',
    ' \t{"text":"spaces around","title":"NaN","x":NaN,"y":[-Infinity,Infinity,-0.5E+3]} ',
    '{"text": "others may have halves of pairs", "title": "u", "z": "\\ud800", "\\udc00": 1}',
    '{"text":"CRLF","title":"end"}\r',
    '{"text":"no newline at the end","title":"last"}',
]


def encode(line, keys, tokenize, eod):
    data = json.loads(line)
    out = {}
    for key in keys:
        sentences = data[key] if isinstance(data[key], list) else [data[key]]
        ids, lengths = [], []
        for sentence in sentences:
            sentence_ids = tokenize(sentence)
            if len(sentence_ids) > 0:
                ids.extend(sentence_ids)
                lengths.append(len(sentence_ids))
        if len(ids) > 0 and eod is not None:
            ids.append(eod)
            lengths[-1] += 1
        out[key] = ids, lengths
    return out


def write(name, lines, keys, tokenize, vocab_size, eod):
    for key in keys:
        prefix = os.path.join(HERE, f"{name}_{key}_document")
        builder = IndexedDatasetBuilder(prefix + ".bin", dtype=DType.optimal_dtype(vocab_size))
        for line in lines:
            builder.add_document(*encode(line, keys, tokenize, eod)[key])
        builder.finalize(prefix + ".idx")


def main():
    lines = [json.dumps(document, ensure_ascii=i % 2 == 0) for i, document in enumerate(DOCUMENTS)] + LINES
    with open(os.path.join(HERE, "documents.jsonl"), "w", newline="") as file:
        file.write("\n".join(lines))
    gpt2 = Tokenizer.from_file(GPT2)
    tokenize = lambda text: gpt2.encode(text, add_special_tokens=False).ids
    size = gpt2.get_vocab_size()
    write("plain", lines, ["text", "title"], tokenize, size, None)
    write("eod", lines, ["text", "title"], tokenize, size, gpt2.token_to_id("<|endoftext|>"))
    numbers = [json.dumps({"text": text}) for text in ["1 2 69999", "", "65499 65500 65535 65536", "0"]]
    with open(os.path.join(HERE, "numbers.jsonl"), "w") as file:
        file.write("\n".join(numbers) + "\n")
    null = lambda text: [int(word) for word in text.split()]
    write("wide", numbers, ["text"], null, 70001, 70000)  # null:70000


main()
