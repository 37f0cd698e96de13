"""Writes adapters/<name>/ for every case below: a random LoRA adapter of a model in models/, and what peft computes.

Usage: python make_adapters.py [name ...]      (CPU, float32, eager attention, no dropout)
Folders have peft's own adapter_config.json and adapter_model.safetensors; expected.safetensors has `logits` and
`grad.<key of the adapter>` of the mean loss on the model's tokens.json; expected.json the loss and versions.
"""

import json
import shutil
import sys
import warnings
from pathlib import Path

import peft
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

warnings.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parent

CASES = {
    "llama": ("llama_gqa", dict(r=3, lora_alpha=7, rank_pattern={"k_proj": 2, r"layers\.1\.mlp\.up_proj": 5},
                                alpha_pattern={"v_proj": 2.5},
                                target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])),
    "llama_dora": ("llama_gqa", dict(r=4, lora_alpha=6, use_dora=True, use_rslora=True,
                                     target_modules=["k_proj", "v_proj", "o_proj", "up_proj", "down_proj"])),
    "gpt2": ("gpt2", dict(r=3, lora_alpha=5, fan_in_fan_out=True, target_modules=["c_attn", "c_proj", "c_fc"],
                          exclude_modules=r".*\.h\.0\.mlp\.c_proj")),
    "gpt2_dora": ("gpt2", dict(r=2, lora_alpha=5, fan_in_fan_out=True, use_dora=True, target_modules=["c_attn", "attn.c_proj"])),
    "gpt_neox": ("gpt_neox", dict(r=3, target_modules=["query_key_value", "dense", "dense_h_to_4h"])),
    "gpt_neox_dora": ("gpt_neox", dict(r=3, use_dora=True, target_modules=["query_key_value", "dense_4h_to_h"])),
    "qwen3": ("qwen3_tied", dict(r=4, lora_alpha=9, target_modules=r".*\.(q|v|down)_proj")),
    "qwen3_moe": ("qwen3_moe", dict(r=2, lora_alpha=3, target_modules=["q_proj", "o_proj"],
                                    target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])),
    "qwen3_moe_down": ("qwen3_moe", dict(r=3, lora_alpha=3, target_modules=["v_proj"],
                                         target_parameters=["mlp.experts.down_proj"])),
    "deepseek_v3": ("deepseek_v3", dict(r=3, lora_alpha=4, target_modules=[
        "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
        layers_to_transform=[0, 2])),
    "llama_embedding": ("llama_gqa", dict(r=3, lora_alpha=5, target_modules=["embed_tokens", "q_proj"])),
    "gemma3_embedding": ("gemma3", dict(r=2, lora_alpha=5, use_rslora=True, target_modules=["embed_tokens", "o_proj"])),
    "llama_saved": ("llama_gqa", dict(r=2, target_modules=["v_proj"], modules_to_save=["lm_head", "embed_tokens", "norm"])),
    "gpt_neox_saved": ("gpt_neox", dict(r=2, target_modules=["dense"], modules_to_save=["final_layer_norm"])),
    "qwen3_tied_saved": ("qwen3_tied", dict(r=2, target_modules=["up_proj"], ensure_weight_tying=True,
                                            modules_to_save=["embed_tokens", "q_norm", "input_layernorm"])),
    "llama_pissa": ("llama_gqa", dict(r=3, lora_alpha=5, init_lora_weights="pissa",
                                      target_modules=["q_proj", "k_proj", "o_proj", "gate_proj"])),
    "gpt_neox_pissa": ("gpt_neox", dict(r=2, use_rslora=True, init_lora_weights="pissa",
                                        target_modules=["query_key_value", "dense_4h_to_h"])),
}


def make(name):
    base, settings = CASES[name]
    folder = ROOT / "adapters" / name
    shutil.rmtree(folder, ignore_errors=True)
    eager = dict(attn_implementation="eager", experts_implementation="eager")
    model = AutoModelForCausalLM.from_pretrained(ROOT / "models" / base, dtype=torch.float32, **eager).eval()
    torch.manual_seed(sum(map(ord, name)))
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
    generator = torch.Generator().manual_seed(len(name))
    for key, p in model.named_parameters():
        if not p.requires_grad:
            continue
        noise = torch.randn(p.shape, generator=generator)
        with torch.no_grad():
            near = "magnitude" in key or "modules_to_save" in key
            p.copy_(p * (1 + 0.3 * noise) if near else 0.3 * noise)
    model.base_model.model.config._name_or_path = base
    model.peft_config["default"].base_model_name_or_path = base
    tokens = json.loads((ROOT / "models" / base / "tokens.json").read_text())
    ids, labels = torch.tensor(tokens["input_ids"]), torch.tensor(tokens["labels"])
    out = model(input_ids=ids, use_cache=False)
    logits = out.logits
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=-100)
    loss.backward()
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    keys = set(load_file(folder / "adapter_model.safetensors"))
    expected = {"logits": logits.detach().clone()}
    for key, p in model.named_parameters():
        if p.requires_grad:
            key = key.replace(".modules_to_save.default", "").replace(".default", "")
            key = key if key in keys else key.removesuffix(".weight")
            assert key in keys, key
            expected["grad." + key] = p.grad.clone()
    copies = {key for key in keys if key.endswith("base_layer.weight") or (settings.get("ensure_weight_tying") and "lm_head" in key)}
    assert len(expected) == len(keys - copies) + 1
    save_file(expected, folder / "expected.safetensors")
    versions = {m.__name__: m.__version__.split("+")[0] for m in (torch, transformers, peft)}
    (folder / "expected.json").write_text(json.dumps({"base": base, "loss": loss.item(), "versions": versions}) + "\n")


for name in sys.argv[1:] or CASES:
    make(name)
