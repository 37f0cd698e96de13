"""Writes mtp/: a small DeepSeek-V3 with two depths of multi-token prediction, made of transformers' own layers.

Usage: python make_mtp_fixture.py      (CPU, float32, eager attention)
Depth d joins the normalised hidden states of the depth before with the embedding of the token d + 1 ahead (0 behind the
end), and predicts the target d + 1 ahead. The loss is the mean over the main targets of main loss + factor / depths *
losses of the depths; its gradients are stored under the names of the weights, behind the last layer as DeepSeek has them.
"""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import AutoConfig
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as source

ROOT = Path(__file__).resolve().parent / "mtp"
DEPTHS, FACTOR, IGNORED = 2, 0.6, -100
CONFIG = dict(vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
              intermediate_size=28, max_position_embeddings=32, rms_norm_eps=1e-5, first_k_dense_replace=9, q_lora_rank=10,
              kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=7, pad_token_id=None,
              num_nextn_predict_layers=DEPTHS,
              rope_parameters={"rope_theta": 100.0, "rope_type": "default"})


class Depth(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        norm = lambda: source.DeepseekV3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.enorm, self.hnorm = norm(), norm()
        self.eh_proj = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layer = source.DeepseekV3DecoderLayer(config, 0)
        self.shared_head = torch.nn.ModuleDict({"norm": norm()})

    def forward(self, hidden, embedded, **inputs):
        x = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1))
        return self.shared_head["norm"](self.layer(x, **inputs))


def ahead(rows, distance, fill):
    return torch.cat([rows[:, distance:], torch.full_like(rows[:, :distance], fill)], 1)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(5)
    config = AutoConfig.for_model("deepseek_v3", **CONFIG)
    config._attn_implementation = "eager"
    model = source.DeepseekV3ForCausalLM(config).float().eval()
    depths = torch.nn.ModuleList(Depth(config) for _ in range(DEPTHS)).float().eval()
    for p in [*model.parameters(), *depths.parameters()]:
        noise = torch.randn(p.shape)
        p.data = 1.3 / math.sqrt(p.shape[1]) * noise if p.ndim >= 2 else 1 + 0.25 * noise

    ids = torch.randint(config.vocab_size, (3, 12))
    labels = ids.clone()
    labels[torch.rand(labels.shape) < 0.15] = IGNORED
    targets = ahead(labels, 1, IGNORED)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    loss_sum = lambda h, t: F.cross_entropy(model.lm_head(h).flatten(0, 1), t.flatten(), ignore_index=IGNORED,
                                            reduction="sum")
    count = int((targets != IGNORED).sum())
    main_loss = loss_sum(hidden, targets) / count
    total, depth_losses = main_loss, []
    positions = torch.arange(ids.shape[1])[None]
    mask = torch.full((1, 1, ids.shape[1], ids.shape[1]), float("-inf")).triu(1)
    for d, depth in enumerate(depths):
        embedded = model.model.embed_tokens(ahead(ids, d + 1, 0))
        hidden = depth(hidden, embedded, attention_mask=mask,
                       position_embeddings=model.model.rotary_emb(embedded, positions))
        later = ahead(targets, d + 1, IGNORED)
        depth_losses.append((loss_sum(hidden, later) / (later != IGNORED).sum()).item())
        total = total + FACTOR / DEPTHS * loss_sum(hidden, later) / count
    total.backward()

    params = dict(model.named_parameters())
    for d, depth in enumerate(depths):
        for name, p in depth.named_parameters():
            params[f"model.layers.{config.num_hidden_layers + d}.{name.removeprefix('layer.')}"] = p
    ROOT.mkdir(exist_ok=True)
    weights = {name: p.detach().contiguous() for name, p in params.items()}
    for d in range(DEPTHS):  # copies that such files hold
        behind = f"model.layers.{config.num_hidden_layers + d}."
        weights[behind + "embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
        weights[behind + "shared_head.head.weight"] = weights["lm_head.weight"].clone()
    save_file(weights, ROOT / "model.safetensors")
    save_file({"grad." + name: p.grad.contiguous() for name, p in params.items()}, ROOT / "expected.safetensors")
    config.architectures = ["DeepseekV3ForCausalLM"]
    config.save_pretrained(ROOT)
    write = lambda name, value: (ROOT / name).write_text(json.dumps(value) + "\n")
    write("tokens.json", {"input_ids": ids.tolist(), "labels": labels.tolist()})
    write("expected.json", {"loss": main_loss.item(), "tokens": count, "depths": DEPTHS, "factor": FACTOR,
                            "depth_losses": depth_losses})


if __name__ == "__main__":
    main()
