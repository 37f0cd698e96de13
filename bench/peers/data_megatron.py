"""megatron-core on the token files that bench/data wrote: data_megatron.py FOLDER SEQ_LENGTH. One JSON line."""
import json
import logging
import os
import shutil
import sys
import time
import warnings
from collections import OrderedDict

logging.disable()
warnings.filterwarnings("ignore")
import numpy
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.utils import Split

folder, seq_length = sys.argv[1], int(sys.argv[2])
prefix = os.path.join(folder, "tokens")


class Tokenizer:
    vocab_size, eod = 50257, 50256
    unique_identifiers = OrderedDict(name="bench")


config = GPTDatasetConfig(random_seed=1234, sequence_length=seq_length, blend=([prefix], None), split="1,0,0",
                          tokenizer=Tokenizer(), reset_position_ids=False, reset_attention_mask=False,
                          eod_mask_loss=False, create_attention_mask=False)
low = GPTDataset.build_low_level_dataset(prefix, config)
tokens = int(numpy.sum(low.sequence_lengths, dtype=numpy.int64))
indices = numpy.arange(len(low.sequence_lengths), dtype=numpy.int32)


def build(cache):
    config.path_to_cache = cache
    begin = time.perf_counter()
    dataset = GPTDataset(low, prefix, indices, (tokens - 1) // seq_length, Split.train, config)
    return dataset, time.perf_counter() - begin


class NoCache(str):
    """A path that is false: the index is built and not saved."""

    def __bool__(self):
        return False


build_s = min(build(NoCache())[1] for _ in range(5))
cache = os.path.join(folder, "megatron_cache")
shutil.rmtree(cache, ignore_errors=True)
dataset, _ = build(cache)
cached_s = min(build(cache)[1] for _ in range(5))
count = min(20000, len(dataset))
rates = []
for _ in range(3):
    begin = time.perf_counter()
    for i in range(count):
        dataset[i]
    rates.append(count / (time.perf_counter() - begin))
print(json.dumps({"index_s": round(build_s, 4), "cached_index_s": round(cached_s, 4), "samples_s": round(max(rates))}))
