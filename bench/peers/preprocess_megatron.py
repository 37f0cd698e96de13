"""Megatron's tools/preprocess_data.py on one file: preprocess_megatron.py TOKENIZER.json INPUT.jsonl PREFIX WORKERS.

The script is not part of the megatron-core package, so its loop stands here: a pool of processes runs the encoder over
the lines (imap, 32 a time), and megatron-core's builder writes what comes back. Prints one JSON line.
"""
import json
import multiprocessing
import os
import sys
import time

from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
from transformers import PreTrainedTokenizerFast

tokenizer_file, source, prefix, workers = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
tokenizer = None


def start():
    global tokenizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_file)


def encode(line):
    ids = tokenizer.encode(json.loads(line)["text"], add_special_tokens=False)
    return ids, [len(ids)] if ids else []


if __name__ == "__main__":
    start()
    begin = time.perf_counter()
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=DType.optimal_dtype(len(tokenizer)))
    tokens = 0
    with open(source, encoding="utf-8") as lines, multiprocessing.Pool(workers, initializer=start) as pool:
        for ids, lengths in pool.imap(encode, lines, 32):
            builder.add_document(ids, lengths)
            tokens += len(ids)
    builder.finalize(prefix + ".idx")
    seconds = time.perf_counter() - begin
    print(json.dumps({"program": "megatron", "workers": workers, "seconds": round(seconds, 2), "tokens": tokens,
                      "mb_per_s": round(os.path.getsize(source) / seconds / 1e6, 2)}))
