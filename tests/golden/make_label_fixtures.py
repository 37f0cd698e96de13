"""Writes labels/<name>/: tiny random models for sequence classification (reward models are those with one
label) and their scores by Hugging Face transformers, padded left, right and with pad = eos.

Usage: python make_label_fixtures.py          (CPU, float32, eager attention)
Made with torch 2.15.0, transformers 5.23.0. scores.json: a list of batches, each {"input_ids", "attention_mask"
(perhaps), "scores"}. reward.json, of models with one label: a batch of `score --objective reward` and, in float64, its
Bradley-Terry loss, rewards and the norms of its gradients.
"""

import json
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from transformers import AutoConfig, AutoModelForSequenceClassification

from make_fixtures import randomise

ROOT = Path(__file__).resolve().parent / "labels"
SMALL = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
             intermediate_size=40, vocab_size=53, max_position_embeddings=64)
SPECS = {
    "llama": ("llama", dict(SMALL, num_labels=1, pad_token_id=3, eos_token_id=2, bos_token_id=1)),
    "llama_pad_is_eos": ("llama", dict(SMALL, num_labels=1, pad_token_id=2, eos_token_id=2, bos_token_id=1)),
    "qwen2": ("qwen2", dict({k: v for k, v in SMALL.items() if k != "head_dim"}, num_labels=3, pad_token_id=0,
                            tie_word_embeddings=True)),
    "qwen3": ("qwen3", dict(SMALL, num_labels=1, pad_token_id=52, tie_word_embeddings=True)),
    "mistral": ("mistral", dict(SMALL, num_labels=2, pad_token_id=4, sliding_window=3)),
    "gpt2": ("gpt2", dict(n_embd=24, n_layer=2, n_head=4, vocab_size=53, n_positions=64, num_labels=2, pad_token_id=5,
                          bos_token_id=1, eos_token_id=2)),
}


def batches(pad, eos, vocabulary, generator):
    def row(length):
        ids = torch.randint(6, vocabulary - 1, (length,), generator=generator).tolist()
        if length > 1:
            ids[length // 2] = pad  # a pad within the text counts as text
        return ids

    rows = [row(n) for n in (9, 5, 1, 7)]
    rows[3][-1] = eos
    width = 9
    right = [r + [pad] * (width - len(r)) for r in rows]
    left = [[pad] * (width - len(r)) + r for r in rows]
    masks = [[1] * len(r) + [0] * (width - len(r)) for r in rows]
    yield {"input_ids": right, "attention_mask": masks}
    yield {"input_ids": left, "attention_mask": [m[::-1] for m in masks]}
    yield {"input_ids": right}
    yield {"input_ids": left}
    yield {"input_ids": [[pad] * 4]}


def reward_batch(model, pad, generator):
    """Pairs of completions of unequal lengths; one ends in pads, which are not scored."""
    def ids(n):
        return torch.randint(6, 52, (n,), generator=generator).tolist()

    pairs = [{"prompt_ids": ids(p), "chosen_ids": ids(c), "rejected_ids": ids(r), "margin": m}
             for p, c, r, m in [(3, 4, 2, 0.0), (1, 1, 6, 0.5), (5, 3, 3, -0.25), (2, 7, 1, 1.0)]]
    pairs[0]["chosen_ids"][-2:] = [pad, pad]
    settings = {"center_rewards_coefficient": 0.05}
    model = model.double()

    def rewards(side):
        return torch.cat([model(input_ids=torch.tensor([pair["prompt_ids"] + pair[side]]), use_cache=False).logits[0]
                          for pair in pairs])

    chosen, rejected = rewards("chosen_ids"), rewards("rejected_ids")
    margins = torch.tensor([pair["margin"] for pair in pairs], dtype=torch.float64)
    loss = (-F.logsigmoid(chosen - rejected - margins) + 0.05 * (chosen + rejected) ** 2).mean()
    loss.backward()
    grads = {name: p.grad.norm().item() for name, p in model.named_parameters() if p.grad is not None}
    return {"batch": {"pairs": pairs, "settings": settings}, "loss": loss.item(),
            "rewards": {"chosen": chosen.tolist(), "rejected": rejected.tolist()},
            "grad_norm": sum(n * n for n in grads.values()) ** 0.5, "norms": grads}


def make(name, model_type, config, seed):
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(model_type, **config),
                                                           attn_implementation="eager").float().eval()
    randomise(model, 1.0, generator)
    pad = config["pad_token_id"]
    rows = []
    for batch in batches(pad, config.get("eos_token_id", 7), 53, generator):
        inputs = {key: torch.tensor(value) for key, value in batch.items()}
        with torch.no_grad():
            rows.append({**batch, "scores": model(**inputs, use_cache=False).logits.tolist()})
    shutil.rmtree(ROOT / name, ignore_errors=True)
    model.save_pretrained(ROOT / name)
    (ROOT / name / "scores.json").write_text(json.dumps(rows) + "\n")
    if config["num_labels"] == 1:
        (ROOT / name / "reward.json").write_text(json.dumps(reward_batch(model, pad, generator)) + "\n")
    (ROOT / name / "generation_config.json").unlink(missing_ok=True)


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for seed, (name, (model_type, config)) in enumerate(SPECS.items()):
        make(name, model_type, config, seed)


if __name__ == "__main__":
    main()
