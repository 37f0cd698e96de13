"""Small files of torch.save and torch.distributed.checkpoint, for tests/fuzz: python make_small_files.py OUT"""
import argparse
import os
import sys
import tempfile

import numpy
import torch
import torch.distributed.checkpoint as dcp

out = sys.argv[1]
args = argparse.Namespace(num_layers=1, lr=0.1, names=["a", None, True], big=10**21, size=torch.Size([2, 3]),
                          dtype=torch.bfloat16, array=numpy.arange(3))
torch.save({"args": args, "weight": torch.nn.Parameter(torch.ones(2, 2)), "half": torch.zeros(3, dtype=torch.bfloat16),
            1: (b"bytes", 2.5, {"set"})}, os.path.join(out, "small.pt"))
with tempfile.TemporaryDirectory() as folder:
    dcp.save({"w": torch.arange(4.0).reshape(2, 2), "n": 3}, checkpoint_id=folder)
    for name, to in ((".metadata", "small.metadata"), ("__0_0.distcp", "small.distcp")):
        with open(os.path.join(folder, name), "rb") as source, open(os.path.join(out, to), "wb") as target:
            target.write(source.read())
