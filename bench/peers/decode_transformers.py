"""Generating text with Hugging Face transformers on the CPU, keys and values kept: tokens/s as one JSON line.

usage: decode_transformers.py MODEL MODE BATCH [NEW_TOKENS]   MODEL: gpt2-124m; MODE: fp32 | bf16
"""
import json, os, sys, time
import torch
from transformers import GPT2Config, GPT2LMHeadModel

model_name, mode, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
new_tokens = int(sys.argv[4]) if len(sys.argv) > 4 else 64
assert model_name == "gpt2-124m"
torch.set_num_threads(len(os.sched_getaffinity(0)))
torch.manual_seed(0)
dtype = torch.bfloat16 if mode == "bf16" else torch.float32
model = GPT2LMHeadModel(GPT2Config(eos_token_id=None, bos_token_id=None)).to(dtype).eval()
prompts = torch.randint(0, 50000, (batch, 32))

def generate(count):
    start = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_new_tokens=count,
                             min_new_tokens=count, use_cache=True, pad_token_id=0)
    assert out.shape == (batch, 32 + count)
    return time.perf_counter() - start

generate(8)
# The prompts' own step is not counted: the difference of a long and a short call.
seconds = (generate(new_tokens) - generate(1)) / (new_tokens - 1)
print(json.dumps(dict(model=model_name, mode=mode, batch=batch, ms=round(seconds * 1e3, 2), tok_s=round(batch / seconds, 1))))
