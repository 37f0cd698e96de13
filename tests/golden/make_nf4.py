"""Writes nf4/vectors.json: what bitsandbytes makes of values that tests make again by `values`.

Usage: python make_nf4.py      (CPU, one thread; torch 2.15.0, bitsandbytes 0.50.2)
Dequantised numbers are not taken from its CPU library, which is wrong where a row is no multiple of the block.
"""

import json
from pathlib import Path

import bitsandbytes.functional as bnb
import torch

ROOT = Path(__file__).resolve().parent / "nf4"
# size, block, dtype, seed, shift of the exponent
CASES = [(1, 64, "float32", 1, 0), (2, 64, "float32", 2, 0), (63, 64, "float32", 3, 0), (64, 64, "float32", 4, 0),
         (65, 64, "float32", 5, 0), (1000, 32, "float32", 6, 0), (5 * 96 + 3, 64, "bfloat16", 7, 0),
         (3 * 131, 128, "float16", 8, 0), (9001, 4096, "float32", 9, 0), (64 * 259 + 17, 64, "float32", 10, -20),
         (64 * 300, 64, "bfloat16", 11, 3), (200, 64, "float32", 12, -126), (130, 64, "float32", 13, -145)]
MEANS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 32, 33, 63, 64, 255, 256, 257, 1000, 4096, 10001, 32767]


def values(count, seed, shift=0):
    """Numbers of 24 bits in [-0.5, 0.5) times 1 to 37 by runs of 64, exact in float32 up to the last rounding."""
    i = torch.arange(count, dtype=torch.int64)
    words = (((i + 1) * 2654435761 * (2 * seed + 1)) % 2**32) >> 8
    x = words.to(torch.float32) * 2.0**-24 - 0.5
    x = x * (1 + (i // 64) % 37).to(torch.float32)
    half = shift // 2
    return x * 2.0**half * 2.0 ** (shift - half)


def hexes(x):
    return [float(v).hex() for v in x.flatten().tolist()]


def main():
    torch.set_num_threads(1)
    out = {"map": hexes(bnb.create_dynamic_map()), "table": hexes(bnb.get_4bit_type("nf4", device="cpu")), "cases": [],
           "means": [[n, float(values(n, 100 * n + i).abs().mean()).hex()] for n in MEANS for i in range(8)]}
    for size, block, dtype, seed, shift in CASES:
        x = values(size, seed, shift).to(getattr(torch, dtype))
        codes, plain = bnb.quantize_4bit(x, blocksize=block, quant_type="nf4")
        same, double = bnb.quantize_4bit(x, blocksize=block, quant_type="nf4", compress_statistics=True)
        assert torch.equal(codes, same)
        out["cases"].append({"size": size, "block": block, "dtype": dtype, "seed": seed, "shift": shift,
                             "codes": bytes(codes.flatten().tolist()).hex(), "absmax": hexes(plain.absmax),
                             "absmax_codes": bytes(double.absmax.tolist()).hex(),
                             "nested_absmax": hexes(double.state2.absmax), "offset": float(double.offset).hex()})
    ROOT.mkdir(exist_ok=True)
    (ROOT / "vectors.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


main()
