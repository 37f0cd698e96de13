"""Writes rounding.txt: floats (bits in hex) and what torch rounds them to in E4M3 and E5M2, after a clamp to the
largest number. usage: python make_rounding.py > rounding.txt   (torch 2.1 or later)"""

import torch

FORMATS = [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)]


def interesting():
    """Every number of both formats, the middles between neighbours, and the floats next to them; and extremes."""
    values = [0.0, 1e-45, 1.1754944e-38, 448.0, 464.0, 479.9, 57344.0, 61440.0, 65536.0, 3.4028235e38]
    for dtype, largest in FORMATS:
        codes = torch.arange(128, dtype=torch.uint8).view(dtype).float()
        codes = codes[torch.isfinite(codes)].double()
        values += codes.tolist() + ((codes[1:] + codes[:-1]) / 2).tolist()
    exact = torch.tensor(sorted(set(values)), dtype=torch.float64).float()
    bits = exact.view(torch.int32)
    around = torch.cat([bits, bits + 1, (bits - 1).clamp(min=0)]).unique()
    around = around[around < 0x7F800000]
    return torch.cat([around.view(torch.float32), -around.view(torch.float32)])


def main():
    x = interesting()
    rounded = [x.clamp(-largest, largest).to(dtype).view(torch.uint8).tolist() for dtype, largest in FORMATS]
    for bits, e4m3, e5m2 in zip(x.view(torch.int32).tolist(), *rounded):
        print(f"{bits & 0xFFFFFFFF:08x} {e4m3:02x} {e5m2:02x}")


main()
