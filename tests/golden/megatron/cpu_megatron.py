"""megatron-core on the CPU: what asks for a GPU gets the CPU, collectives go through gloo."""
import contextlib
import os
import sys

import torch
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    """Turns devices of arguments into the CPU, and .cuda() into nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")  # which Megatron compares
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def start(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world),
                      LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.set_device = lambda *_: None
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.empty_cache = lambda *_: None
    torch.cuda.current_stream = lambda *_: None
    torch.cuda.get_device_capability = lambda *_: (8, 0)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    from megatron.core.tensor_parallel import random as tp_random

    from megatron.core.transformer.moe import moe_utils

    moe_utils.te_general_gemm = None  # a name that only exists with Transformer Engine
    tp_random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
    OnCpu().__enter__()
