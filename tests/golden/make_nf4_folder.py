"""Writes nf4/llama and nf4/gpt2: small models that transformers and bitsandbytes quantised to NF4, and their logits.

Usage: python make_nf4_folder.py      (CPU, one thread; torch 2.15.0, transformers 5.23.0, bitsandbytes 0.50.2)
llama has double quantisation of bfloat16 weights, gpt2 plain blocks of float32 ones. No row is a multiple of a block.
logits are computed in float32 from weights that are dequantised here by the flat formula, as its CPU library is wrong
where a row is no multiple of the block.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

ROOT = Path(__file__).resolve().parent / "nf4"
LLAMA = dict(model_type="llama", vocab_size=47, hidden_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=76, max_position_embeddings=32, rms_norm_eps=1e-5, tie_word_embeddings=False)
GPT2 = dict(model_type="gpt2", vocab_size=43, n_embd=36, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0)


def dequantise(tensors, name):
    state = json.loads(bytes(tensors[name + ".quant_state.bitsandbytes__nf4"].tolist()))
    codes, absmax = tensors[name].flatten().int(), tensors[name + ".absmax"]
    if "nested_blocksize" in state:
        runs = torch.arange(absmax.numel()) // state["nested_blocksize"]
        absmax = tensors[name + ".nested_quant_map"][absmax.int()] * tensors[name + ".nested_absmax"][runs]
        absmax = absmax + torch.tensor(state["nested_offset"])
    count = torch.Size(state["shape"]).numel()
    values = tensors[name + ".quant_map"][torch.stack([codes >> 4, codes & 15], 1).flatten()[:count]]
    values = values * absmax[torch.arange(count) // state["blocksize"]]
    return values.reshape(state["shape"]).to(getattr(torch, state["dtype"])).float()


def write(name, config, dtype, double):
    torch.manual_seed(3)
    config = AutoConfig.for_model(**config)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for p in model.parameters():
        noise = torch.randn(p.shape)
        p.data = noise / p.shape[-1] ** 0.5 if p.ndim >= 2 else 1 + 0.25 * noise
    with tempfile.TemporaryDirectory() as scratch:
        model.to(dtype).save_pretrained(scratch)
        packing = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double,
                                     bnb_4bit_compute_dtype=torch.float32)
        packed = AutoModelForCausalLM.from_pretrained(scratch, quantization_config=packing, dtype=dtype, device_map={"": "cpu"})
    folder = ROOT / name
    packed.save_pretrained(folder)
    for extra in folder.glob("generation_config.json"):
        extra.unlink()
    tensors = load_file(folder / "model.safetensors")
    state = {}
    for key, value in tensors.items():
        if key + ".absmax" in tensors:
            value = dequantise(tensors, key)
            state[key] = value.T if name == "gpt2" else value
        elif not any(key.endswith(end) for end in (".absmax", "quant_map", "nested_absmax", "__nf4")):
            state[key] = value.float()
    plain = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    missing = plain.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys and all("lm_head" in k for k in missing.missing_keys), missing
    plain.tie_weights()
    ids = torch.randint(0, config.vocab_size, (2, 13))
    with torch.no_grad():
        logits = plain(input_ids=ids, use_cache=False).logits
        packed_logits = packed.train()(input_ids=ids, use_cache=False).logits.float()  # eval() packs weights for the CPU
    print(name, "bitsandbytes' own logits differ by", (packed_logits - logits).abs().max().item(), file=sys.stderr)
    save_file({"logits": logits} | {"weight." + k: v.contiguous() for k, v in state.items() if ".1." in k and v.ndim > 1},
              folder / "expected.safetensors")
    (folder / "tokens.json").write_text(json.dumps({"input_ids": ids.tolist(), "labels": ids.tolist()}))


def main():
    torch.set_num_threads(1)
    write("llama", LLAMA, torch.bfloat16, True)
    write("gpt2", GPT2, torch.float32, False)


main()
