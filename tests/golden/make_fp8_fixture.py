"""Writes fp8_blocks/: a small DeepSeek-V3 whose linears are stored as its files have them, float8_e4m3fn with a scale for
each block of 128 x 128 numbers, and what transformers computes with the weights expanded in float32.

Usage: python make_fp8_fixture.py      (CPU, float32, eager attention)
Sizes are no multiples of 128, and some blocks hold numbers below the smallest normal one, zeros or the largest.
"""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as source

ROOT = Path(__file__).resolve().parent / "fp8_blocks"
BLOCK, LARGEST = 128, 448.0
CONFIG = dict(vocab_size=47, hidden_size=136, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
              intermediate_size=130, moe_intermediate_size=129, n_routed_experts=3, num_experts_per_tok=2, n_shared_experts=1,
              n_group=1, topk_group=1, first_k_dense_replace=1, max_position_embeddings=32, rms_norm_eps=1e-5, q_lora_rank=20,
              kv_lora_rank=14, qk_nope_head_dim=30, qk_rope_head_dim=6, v_head_dim=33, pad_token_id=None,
              num_nextn_predict_layers=0, rope_parameters={"rope_theta": 100.0, "rope_type": "default"})
EXACT = ["model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.experts.2.gate_proj.weight",
         "model.layers.1.self_attn.kv_b_proj.weight"]


def pack(weight):
    """The weight in blocks, and what the blocks hold as numbers of float32."""
    rows, columns = weight.shape
    scales = torch.empty(math.ceil(rows / BLOCK), math.ceil(columns / BLOCK))
    packed, expanded = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), torch.empty(weight.shape)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = (slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK))
            scales[i, j] = weight[at].abs().max() / LARGEST
            packed[at] = (weight[at] / scales[i, j]).to(torch.float8_e4m3fn)
            expanded[at] = packed[at].float() * scales[i, j]
    return packed, scales, expanded


def main():
    torch.set_num_threads(1)
    torch.manual_seed(11)
    config = AutoConfig.for_model("deepseek_v3", **CONFIG)
    config._attn_implementation = config._experts_implementation = "eager"
    model = source.DeepseekV3ForCausalLM(config).float().eval()
    for p in model.parameters():
        noise = torch.randn(p.shape)
        p.data = 1.3 / math.sqrt(p.shape[-1]) * noise if p.ndim >= 2 else 1 + 0.25 * noise
    state = {}
    for name, value in model.state_dict().items():
        value = value.clone()
        if name.endswith("e_score_correction_bias"):
            value = 0.05 * torch.randn(value.shape)
        state[name] = value

    # transformers 5 keeps experts in one tensor; files have them one by one.
    stored, expanded, exact = {}, {}, {}

    def put(name, weight):
        if "_proj" not in name and "_a_" not in name and "_b_" not in name or weight.ndim != 2:
            stored[name] = weight if "correction_bias" in name else weight.bfloat16()
            return stored[name].float()
        weight = weight.clone()
        weight[0, :5] *= 1e-5
        weight[-1, -3:] = 0
        stored[name], stored[name + "_scale_inv"], numbers = pack(weight)
        if name in EXACT:
            exact[name] = numbers
        return numbers

    for name, value in state.items():
        if name.endswith("experts.gate_up_proj"):
            prefix = name.removesuffix("gate_up_proj")
            halves = [v.chunk(2) for v in value]
            expanded[name] = torch.stack([
                torch.cat([put(f"{prefix}{e}.gate_proj.weight", gate), put(f"{prefix}{e}.up_proj.weight", up)])
                for e, (gate, up) in enumerate(halves)])
        elif name.endswith("experts.down_proj"):
            prefix = name.removesuffix("down_proj")
            expanded[name] = torch.stack([put(f"{prefix}{e}.down_proj.weight", v) for e, v in enumerate(value)])
        else:
            expanded[name] = put(name, value)
    model.load_state_dict(expanded)

    ids = torch.randint(config.vocab_size, (2, 9))
    with torch.no_grad():
        logits = model(ids).logits
    ROOT.mkdir(exist_ok=True)
    settings = config.to_dict() | dict(
        architectures=["DeepseekV3ForCausalLM"], dtype="bfloat16",
        quantization_config=dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8",
                                 weight_block_size=[BLOCK, BLOCK]))
    (ROOT / "config.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    (ROOT / "tokens.json").write_text(json.dumps(dict(input_ids=ids.tolist(), labels=ids.tolist())) + "\n")
    save_file({k: v.contiguous() for k, v in stored.items()}, ROOT / "model.safetensors", {"format": "pt"})
    save_file({"logits": logits} | exact, ROOT / "expected.safetensors")


if __name__ == "__main__":
    main()
