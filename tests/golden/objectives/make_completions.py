"""Writes completions.json: batches of `bevatron score --objective` on the golden models, and what transformers and
torch give for them in float64, one completion at a time without padding.

    python make_completions.py

The policy is models/llama_gqa, the reference models/mistral_window_mqa (same vocabulary). The losses are those of TRL
1.16 (DPOTrainer, KTOTrainer, ORPOTrainer, CPOTrainer) and of GRPO. Made with torch 2.15.0, transformers 5.23.0.
"""
import json
import pathlib
import random

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
MODELS = HERE.parent / "models"
rng = random.Random(7)
policy = AutoModelForCausalLM.from_pretrained(MODELS / "llama_gqa", attn_implementation="eager").double().eval()
reference = AutoModelForCausalLM.from_pretrained(MODELS / "mistral_window_mqa",
                                                 attn_implementation="eager").double().eval()
WHOLE = ["model.norm.weight", "model.layers.0.input_layernorm.weight"]
V = 97


def ids(n):
    return [rng.randrange(V) for _ in range(n)]


def logps(model, prompt, completion):
    """Of the completion's tokens; of those of prompt and completion but the first."""
    row = torch.tensor([prompt + completion])
    scores = F.log_softmax(model(input_ids=row).logits, -1)[0, :-1]
    every = scores.gather(-1, row[0, 1:, None])[:, 0]
    return every[len(prompt) - 1:], every


def frozen(prompt, completion):
    with torch.no_grad():
        return logps(reference, prompt, completion)[0]


pairs = [{"prompt_ids": ids(p), "chosen_ids": ids(c), "rejected_ids": ids(r)}
         for p, c, r in [(3, 4, 2), (1, 1, 6), (7, 5, 5), (2, 9, 1), (4, 2, 2)]]
rows = [{"prompt_ids": ids(p), "completion_ids": ids(c), "label": y}
        for p, c, y in [(2, 3, True), (5, 1, False), (1, 6, True), (3, 2, True), (4, 4, False)]]
rollouts = [{"prompt_ids": ids(p), "completion_ids": ids(c), "reward": r, "group": g}
            for p, c, r, g in [(2, 3, 1.0, 0), (2, 5, 0.0, 0), (2, 1, 0.5, 0), (4, 2, 0.0, 9), (4, 6, 1.0, 9)]]


def pair_sums():
    out = []
    for pair in pairs:
        c, every = logps(policy, pair["prompt_ids"], pair["chosen_ids"])
        r, _ = logps(policy, pair["prompt_ids"], pair["rejected_ids"])
        out.append((c.sum(), r.sum(), frozen(pair["prompt_ids"], pair["chosen_ids"]).sum(),
                    frozen(pair["prompt_ids"], pair["rejected_ids"]).sum(), len(c), len(r), every, c))
    return out


def dpo():
    sums = pair_sums()
    losses = [-F.logsigmoid(0.3 * ((c - rc) - (r - rr))) for c, r, rc, rr, *_ in sums]
    return sum(losses) / len(losses), {"chosen": [s[0].item() for s in sums], "rejected": [s[1].item() for s in sums]}


def ipo():
    sums = pair_sums()
    losses = [((c - rc) / nc - (r - rr) / nr - 1 / 0.6) ** 2 for c, r, rc, rr, nc, nr, *_ in sums]
    return sum(losses) / len(losses), {"chosen": [s[0].item() for s in sums], "rejected": [s[1].item() for s in sums]}


def orpo():
    sums, losses = pair_sums(), []
    for c, r, _, _, nc, nr, *_ in sums:
        c, r = c / nc, r / nr
        losses.append(-0.3 * F.logsigmoid((c - r) - (torch.log1p(-torch.exp(c)) - torch.log1p(-torch.exp(r)))))
    nll = -torch.cat([s[6] for s in sums]).mean()
    return nll + sum(losses) / len(losses), None


def cpo():
    sums = pair_sums()
    losses = [-F.logsigmoid(0.3 * (c - r)) for c, r, *_ in sums]
    return sum(losses) / len(losses) - 0.5 * torch.cat([s[7] for s in sums]).mean(), None


def kto():
    kl, ratios, sums = [], [], []
    for i, row in enumerate(rows):
        other = rows[i - 1]["completion_ids"]
        with torch.no_grad():
            kl.append(logps(policy, row["prompt_ids"], other)[0].sum() - frozen(row["prompt_ids"], other).sum())
        sums.append(logps(policy, row["prompt_ids"], row["completion_ids"])[0].sum())
        ratios.append(sums[-1] - frozen(row["prompt_ids"], row["completion_ids"]).sum())
    z = (sum(kl) / len(kl)).clamp(min=0)
    losses = [1 - torch.sigmoid(0.3 * (a - z)) if row["label"] else 1.5 * (1 - torch.sigmoid(0.3 * (z - a)))
              for a, row in zip(ratios, rows)]
    return sum(losses) / len(losses), [s.item() for s in sums]


def grpo():
    tokens, losses = [], []
    for row in rollouts:
        group = torch.tensor([r["reward"] for r in rollouts if r["group"] == row["group"]], dtype=torch.float64)
        a = (row["reward"] - group.mean()) / (group.std() + 1e-4)
        lp = logps(policy, row["prompt_ids"], row["completion_ids"])[0]
        d = frozen(row["prompt_ids"], row["completion_ids"]) - lp
        ratio = torch.exp(lp - lp.detach())
        losses.append((-ratio * a + 0.05 * (torch.exp(d) - d - 1)).mean())
        tokens.append(lp.tolist())
    return sum(losses) / len(losses), tokens


CASES = [("dpo", dpo, {"pairs": pairs, "settings": {"beta": 0.3}}),
         ("ipo", ipo, {"pairs": pairs, "settings": {"beta": 0.3}}),
         ("orpo", orpo, {"pairs": pairs, "settings": {"beta": 0.3}}),
         ("cpo", cpo, {"pairs": pairs, "settings": {"beta": 0.3, "cpo_alpha": 0.5}}),
         ("kto", kto, {"rows": rows, "settings": {"beta": 0.3, "undesirable_weight": 1.5}}),
         ("grpo", grpo, {"rollouts": rollouts, "settings": {"beta": 0.05}})]
out = []
for name, loss_of, batch in CASES:
    policy.zero_grad()
    loss, logps_ = loss_of()
    loss.backward()
    grads = {n: p.grad for n, p in policy.named_parameters()}
    out.append({"objective": name, "batch": batch, "loss": loss.item(), "logps": logps_,
                "grad_norm": torch.sqrt(sum((g ** 2).sum() for g in grads.values())).item(),
                "norms": {n: g.norm().item() for n, g in grads.items()},
                "grads": {n: grads[n].tolist() for n in WHOLE}})
(HERE / "completions.json").write_text("[\n" + ",\n".join(json.dumps(o) for o in out) + "\n]\n")
print([(o["objective"], o["loss"], o["grad_norm"]) for o in out])
