"""Hugging Face's side of bench/convert.sh: a Llama of 1.03 billion parameters in bf16, made, loaded and saved.

usage: convert_transformers.py make FOLDER | convert_transformers.py rewrite FROM TO
"""

import json
import os
import sys
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def make(folder):
    config = LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=18, num_attention_heads=16, num_key_value_heads=4,
        vocab_size=48000, max_position_embeddings=2048, tie_word_embeddings=False)
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    print(json.dumps({"parameters": sum(p.numel() for p in model.parameters())}))


def sync(folder):
    for name in os.listdir(folder):
        file = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.fsync(file)
        os.close(file)


def rewrite(source, target):
    start = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    checksum = sum(p.view(torch.int16).flatten()[::1024].sum().item() for p in model.parameters())
    loaded = time.perf_counter()
    model.save_pretrained(target)
    sync(target)
    saved = time.perf_counter()
    print(json.dumps({"who": "transformers", "load_s": round(loaded - start, 2), "save_s": round(saved - loaded, 2),
                      "seconds": round(saved - start, 2), "checksum": checksum}))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    else:
        rewrite(sys.argv[2], sys.argv[3])
