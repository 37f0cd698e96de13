"""Loads the stored models with the installed transformers (4.57 or 5.x) and compares the logits.

config.json is read by 5.x only; config_v4.json, where present, by both.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parent / "models"
V5 = int(transformers.__version__.split(".")[0]) >= 5
# Grouped products of torch want sizes that these experts do not have.
EAGER = dict(attn_implementation="eager") | (dict(experts_implementation="eager") if V5 else {})


def difference(folder, config_name):
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(folder / config_name, Path(scratch) / "config.json")
        shutil.copy(folder / "model.safetensors", scratch)
        model = AutoModelForCausalLM.from_pretrained(scratch, **EAGER).float().eval()
    ids = torch.tensor(json.loads((folder / "tokens.json").read_text())["input_ids"])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
    return (logits - load_file(folder / "expected.safetensors")["logits"]).abs().max().item()


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    names = ["config_v4.json"] + (["config.json"] if V5 else [])
    worst = 0.0
    for folder in sorted(ROOT.iterdir()):
        for name in names:
            if (folder / name).exists():
                d = difference(folder, name)
                worst = max(worst, d)
                print(f"{folder.name}/{name}: {d:.1e}")
    print(f"transformers {transformers.__version__}: worst {worst:.1e}")
    sys.exit(worst > 2e-5)


if __name__ == "__main__":
    main()
