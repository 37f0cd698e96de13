"""Weights after steps of optimizers, by torch.optim and NVIDIA's emerging-optimizers.

    pip install torch safetensors absl-py typing-extensions
    pip download --no-deps --ignore-requires-python emerging_optimizers==0.3.0   # unzip into DIR
    python make_optimizers.py DIR

writes optimizers/input.safetensors (W.., W.grad.0, ..), optimizers/expected.safetensors (CASE/W: the weights after
all steps) and optimizers/cases.json: the flags of each case, its weights and its tolerance, relative to
the largest change of a weight. Muon's products are in fp32 (--muon-fp32-matmul-prec highest) but in the
case medium.
"""
import json
import pathlib
import sys
import typing

import torch
import typing_extensions
from safetensors.torch import save_file

typing.override = typing_extensions.override
sys.path.insert(0, sys.argv[1])
torch._dynamo.config.disable = True  # eager code is the reference
from emerging_optimizers.orthogonalized_optimizers.muon import Muon  # noqa: E402
from emerging_optimizers.scalar_optimizers.lion import Lion  # noqa: E402
from emerging_optimizers.soap.soap import SOAP  # noqa: E402

OUT = pathlib.Path(__file__).parent / "optimizers"
SHAPES = {"tall": (11, 5), "wide": (4, 9), "square": (6, 6), "linear_qkv.weight": (14, 6), "vector": (7,)}
QKV = (8, 3, 3)
STEPS, LR, DECAY = 5, 0.03, 0.1


def make_input():
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for name, shape in SHAPES.items():
        tensors[name] = torch.randn(shape, generator=generator)
        for step in range(STEPS):
            tensors[f"{name}.grad.{step}"] = torch.randn(shape, generator=generator) * 0.3
    tensors["square.grad.1"].zero_()
    return tensors


class QkvMuon(Muon):
    """Megatron's split of linear_qkv.weight, here with q, k and v one after the other."""

    def orthogonalize(self, p, grad, **kwargs):
        if getattr(p, "is_qkv", False):
            return torch.cat([self.scaled_orthogonalize_fn(g) for g in torch.split(grad, QKV)])
        return super().orthogonalize(p, grad, **kwargs)


def train(tensors, make, names, decay_vectors=True):
    out = {}
    for name in names:
        weight = torch.nn.Parameter(tensors[name].clone())
        weight.is_qkv = name == "linear_qkv.weight"
        decay = DECAY if decay_vectors or weight.ndim > 1 else 0.0
        optimizer = make([weight], decay)
        for step in range(STEPS):
            weight.grad = tensors[f"{name}.grad.{step}"].clone()
            optimizer.step()
        out[name] = weight.detach().clone()
    return out


def main():
    tensors = make_input()
    matrices = [name for name, shape in SHAPES.items() if len(shape) == 2]
    everything = list(SHAPES)
    cases = {}

    def case(name, flags, make, names, tolerance, **more):
        flags = ["--lr", str(LR), "--weight-decay", str(DECAY), *flags]
        cases[name] = {"flags": flags, "weights": names, "tolerance": tolerance}
        results[name] = train(tensors, make, names, **more)

    results = {}
    plain = {"decay_vectors": False}
    case("adamw", ["--optimizer", "adamw"],
         lambda p, wd: torch.optim.AdamW(p, lr=LR, weight_decay=wd), everything, 2e-5, **plain)
    case("sgd", ["--optimizer", "sgd"],
         lambda p, wd: torch.optim.SGD(p, lr=LR, weight_decay=wd, momentum=0.9), everything, 1e-5, **plain)
    case("lion", ["--optimizer", "lion", "--lion-beta1", "0.9", "--lion-beta2", "0.99"],
         lambda p, wd: Lion(p, lr=LR, weight_decay=wd, betas=(0.9, 0.99)), everything, 1e-5, **plain)
    case("adafactor", ["--optimizer", "adafactor"],
         lambda p, wd: torch.optim.Adafactor(p, lr=LR, weight_decay=wd), everything, 2e-5, **plain)
    case("adafactor_late", ["--optimizer", "adafactor", "--adafactor-beta2-decay", "-0.5", "--adafactor-eps1", "1e-3",
                            "--adafactor-eps2", "2", "--adafactor-clip-threshold", "1.1"],
         lambda p, wd: torch.optim.Adafactor(p, lr=LR, weight_decay=wd, beta2_decay=-0.5, eps=(1e-3, 2.0), d=1.1),
         everything, 2e-5, **plain)
    # The basis of what a first gradient of another shape leaves out is arbitrary, and in the basis a first gradient is
    # diagonal: with a small epsilon, the update is the sign of rounding errors beside the diagonal.
    case("soap", ["--optimizer", "soap", "--adam-beta2", "0.95", "--adam-eps", "1e-2"],
         lambda p, wd: SOAP(p, lr=LR, weight_decay=wd, betas=(0.9, 0.95), eps=1e-2, fp32_matmul_prec="highest",
                            qr_fp32_matmul_prec="highest"), ["square"], 2e-4)

    muon = ["--optimizer", "muon", "--muon-fp32-matmul-prec", "highest"]

    def muon_case(name, flags, tolerance=2e-4, prec="highest", **settings):
        settings = {"momentum": 0.9, **settings}
        case(name, [*muon, *flags],
             lambda p, wd: QkvMuon(p, lr=LR, weight_decay=wd, fp32_matmul_prec=prec, **settings), matrices, tolerance)

    for kind in ("quintic", "simple", "polar_express", "cans", "aol", "deepseekv4"):
        for steps in (3, 5, 11):
            muon_case(f"muon_{kind}_{steps}", ["--muon-coefficient-type", kind, "--muon-num-ns-steps", str(steps)],
                      coefficient_type=kind, num_ns_steps=steps)
    for mode in ("unit_rms_norm", "shape_scaling"):
        muon_case(f"muon_{mode}", ["--muon-scale-mode", mode, "--muon-extra-scale-factor", "0.2"], scale_mode=mode,
                  extra_scale_factor=0.2)
    muon_case("muon_nesterov", ["--muon-nesterov", "--muon-momentum", "0.95"], nesterov=True, momentum=0.95)
    muon_case("muon_medium", ["--muon-fp32-matmul-prec", "medium"], tolerance=4e-2, prec="medium")

    OUT.mkdir(exist_ok=True)
    save_file(tensors, OUT / "input.safetensors")
    save_file({f"{name}/{weight}": value for name, result in results.items() for weight, value in result.items()},
              OUT / "expected.safetensors")
    versions = {"torch": torch.__version__, "emerging_optimizers": "0.3.0"}
    (OUT / "cases.json").write_text(json.dumps({"versions": versions, "qkv_rows": QKV, "cases": cases}, indent=1))


main()
