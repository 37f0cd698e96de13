"""The orders of Megatron-LM's samplers, for tests/data/sample_order_test.cpp.

    pip install torch megatron-core
    python make_order_fixtures.py MEGATRON_LM    # a checkout; rewrites orders.json beside this file

Every case lists the micro-batches that each data-parallel rank gets, from some position on. Without data sharding
Megatron's ranks fall out of step at the end of an epoch where they do not divide the samples; such cases are left out.
"""
import ast
import json
import os
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))


def samplers(checkout):
    """The sampler classes alone: their module wants a whole training set-up."""
    with open(os.path.join(checkout, "megatron/training/datasets/data_samplers.py")) as file:
        tree = ast.parse(file.read())
    names = ("MegatronPretrainingSampler", "MegatronPretrainingRandomSampler")
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in names]
    scope = {"torch": torch, "RandomSeedDataset": type(None)}
    exec(compile(tree, "data_samplers.py", "exec"), scope)
    return [scope[name] for name in names]


def take(sampler, count):
    """So many micro-batches; a cyclic sampler starts again when an epoch is over."""
    out = []
    while len(out) < count:
        before = len(out)
        for batch in sampler:
            out.append(batch)
            if len(out) == count:
                break
        if len(out) == before:
            break
    return out


def main(checkout):
    single, cyclic = samplers(checkout)
    cases = []
    for total, size, ranks, blocks in ((17, 1, 1, 0), (24, 2, 3, 0), (24, 2, 3, 2), (1000, 3, 4, 5), (29, 2, 2, 3)):
        count = total // (size * ranks) - blocks
        cases.append({"kind": "single", "num_samples": total, "micro_batch_size": size, "data_parallel_size": ranks,
                      "consumed_samples": blocks * size * ranks, "micro_batches": [
                          take(single(total, blocks * size * ranks, size, rank, ranks), count)
                          for rank in range(ranks)]})
    for sharding in (True, False):
        for total, size, ranks, blocks in ((10, 1, 1, 0), (29, 2, 3, 0), (29, 2, 3, 3), (29, 2, 3, 4), (29, 2, 3, 11),
                                           (64, 4, 2, 5), (13, 1, 4, 0), (700, 3, 4, 200), (31, 5, 1, 1)):
            block = size * ranks
            count = 3 * (total // block)
            if not sharding and any((total // size * size - rank + ranks - 1) // ranks // size != total // block
                                    for rank in range(ranks)):
                continue
            cases.append({"kind": "cyclic", "data_sharding": sharding, "num_samples": total, "micro_batch_size": size,
                          "data_parallel_size": ranks, "consumed_samples": blocks * block, "micro_batches": [
                              take(cyclic(None, total, blocks * block, size, rank, ranks, sharding), count)
                              for rank in range(ranks)]})
    with open(os.path.join(HERE, "orders.json"), "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])
