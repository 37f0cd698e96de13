"""Writes cases.json: inputs of `bevatron objective`, and what they give in torch, in float64.

    python make_objectives.py

The formulas are those of the reference packages (TRL 1.16: dpo_trainer, kto_trainer, orpo_trainer, cpo_trainer,
reward_trainer, grpo_trainer; verl 1dda039: core_algos), written for float64; gradients are torch's. Where TRL has a
function of log-probabilities (cpo_loss, odds_ratio_loss), the script compares with it. Made with torch 2.15.0.
"""
import json
import math
import pathlib
import random
import types

import torch
import torch.nn.functional as F

D = torch.float64
rng = random.Random(20261)
cases = []


def tensor(x, grad=False):
    return torch.tensor(x, dtype=D, requires_grad=grad)


def numbers(t):
    return t.detach().tolist()


def case(name, settings, fields, loss, losses, grads, **more):
    loss.backward()
    cases.append({
        "objective": name,
        "input": {**settings, **fields},
        "expected": {
            "loss": loss.item(),
            **({"losses": numbers(losses)} if losses is not None else {}),
            "grads": {k: (numbers(v.grad) if not isinstance(v, list) else [numbers(r.grad) for r in v])
                      for k, v in grads.items()},
            **more,
        },
    })


def log1mexp(x):
    return torch.where(x > -math.log(2), torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))


def pair_loss(name, pc, pr, rc, rr, nc, nr, beta, e, gamma):
    a, b = pc - rc, pr - rr
    d = a - b
    ls = F.logsigmoid
    if name == "dpo":
        return -ls(beta * d)
    if name == "cdpo":
        return -(1 - e) * ls(beta * d) - e * ls(-beta * d)
    if name == "robust":
        return (-(1 - e) * ls(beta * d) + e * ls(-beta * d)) / (1 - 2 * e)
    if name == "hinge":
        return torch.relu(1 - beta * d)
    if name == "ipo":
        return (a / nc - b / nr - 1 / (2 * beta)) ** 2
    if name == "exo_pair":
        u = beta * d
        return torch.sigmoid(u) * (ls(u) - math.log1p(-e)) + torch.sigmoid(-u) * (ls(-u) - math.log(e))
    if name == "nca_pair":
        return -ls(beta * a) - 0.5 * ls(-beta * a) - 0.5 * ls(-beta * b)
    if name == "bco_pair":
        return -ls(beta * a) - ls(-beta * b)
    if name == "sppo_hard":
        return (a - 0.5 / beta) ** 2 + (b + 0.5 / beta) ** 2
    if name == "apo_zero":
        return 1 - torch.sigmoid(beta * a) + torch.sigmoid(beta * b)
    if name == "apo_down":
        return torch.sigmoid(beta * a) + 1 - torch.sigmoid(beta * d)
    if name == "discopop":
        u = beta * d
        m = torch.sigmoid(u / 0.05)
        # m exp(-u) in one exponential: exp(-u) alone overflows.
        return (1 - m) * -ls(u) + torch.exp(ls(u / 0.05) - u)
    if name == "sigmoid_norm":
        return -ls(beta * (a / nc - b / nr))
    if name == "simpo":
        u = beta * (pc / nc - pr / nr) - gamma
        return -(1 - e) * ls(u) - e * ls(-u)
    if name == "cpo":
        u = beta * (pc - pr)
        return -(1 - e) * ls(u) - e * ls(-u)
    if name == "orpo":
        c, r = pc / nc, pr / nr
        odds = (c - r) - (log1mexp(c) - log1mexp(r))
        return -beta * ls(odds)
    raise KeyError(name)


PAIRS = ("dpo cdpo robust hinge ipo exo_pair nca_pair bco_pair sppo_hard apo_zero apo_down discopop sigmoid_norm "
         "simpo cpo orpo").split()
SMOOTHED = {"cdpo", "robust", "exo_pair", "simpo", "cpo"}


def pair_cases():
    kinds = {
        "plain": lambda n: [-rng.uniform(1, 40) for _ in range(n)],
        "far": lambda n: [-rng.choice([0.5, 3000.0, 90000.0]) * rng.uniform(0.5, 1) for _ in range(n)],
        "equal": lambda n: [-7.25] * n,
        "one": lambda n: [-rng.uniform(0.01, 9) for _ in range(1)],
    }
    for name in PAIRS:
        for kind, draw in kinds.items():
            n = 1 if kind == "one" else 5
            beta = {"plain": 0.1, "far": 0.7, "equal": 0.25, "one": 2.0}[kind]
            e = {"plain": 0.1, "far": 0.3, "equal": 0.01, "one": 0.2}[kind] if name in SMOOTHED else 0.0
            gamma = 0.9
            pc, pr = tensor(draw(n), True), tensor(draw(n), True)
            rc, rr = tensor(draw(n)), tensor(draw(n))
            nc = tensor([float(rng.randint(1, 9)) for _ in range(n)])
            nr = tensor([float(rng.randint(1, 9)) for _ in range(n)])
            nll = tensor(rng.uniform(0.5, 4), True)
            losses = pair_loss(name, pc, pr, rc, rr, nc, nr, beta, e, gamma)
            loss = losses.mean()
            grads = {"policy_chosen_logps": pc, "policy_rejected_logps": pr}
            settings = {"beta": beta}
            if name in SMOOTHED:
                settings["label_smoothing"] = e
            if name == "simpo":
                settings["gamma"] = gamma
            if name in ("orpo", "cpo"):
                alpha = 1.0 if name == "orpo" else 0.35
                if name == "cpo":
                    settings["cpo_alpha"] = alpha
                loss = loss + alpha * nll
                grads["chosen_nll"] = nll
            check_with_trl(name, pc, pr, nc, nr, beta, e, gamma, losses)
            fields = {"policy_chosen_logps": numbers(pc), "policy_rejected_logps": numbers(pr),
                      "ref_chosen_logps": numbers(rc), "ref_rejected_logps": numbers(rr),
                      "chosen_lengths": numbers(nc), "rejected_lengths": numbers(nr), "chosen_nll": nll.item()}
            case(name, settings, fields, loss, losses, grads)


def check_with_trl(name, pc, pr, nc, nr, beta, e, gamma, losses):
    """TRL's own functions, in float32 or float64 as they are written."""
    try:
        from trl.experimental.cpo import CPOTrainer
        from trl.experimental.orpo import ORPOTrainer
    except ImportError:
        return
    me = types.SimpleNamespace(alpha=0.0, beta=beta, label_smoothing=e, simpo_gamma=gamma,
                               accelerator=types.SimpleNamespace(device="cpu"))
    if name in ("simpo", "cpo"):
        me.loss_type = "simpo" if name == "simpo" else "sigmoid"
        c, r = (pc / nc, pr / nr) if name == "simpo" else (pc, pr)
        theirs = CPOTrainer.cpo_loss(me, c.detach(), r.detach())[0]
        assert torch.allclose(theirs, losses.detach(), rtol=1e-12, atol=0), name
    if name == "orpo":
        theirs = -ORPOTrainer.odds_ratio_loss(me, (pc / nc).detach(), (pr / nr).detach())[0]
        assert torch.allclose(theirs.to(D), losses.detach(), rtol=1e-4, atol=1e-5), (theirs, losses)


def kto_cases():
    for kind in ("plain", "far", "one", "negative", "no_kl"):
        n = 1 if kind == "one" else 7
        scale = 5000 if kind == "far" else 6
        policy = tensor([-rng.uniform(0.1, scale) for _ in range(n)], True)
        ref = tensor([-rng.uniform(0.1, scale) for _ in range(n)])
        m = 0 if kind == "no_kl" else n + 2
        policy_kl = tensor([-rng.uniform(0.1, 6) for _ in range(m)])
        ref_kl = tensor([-rng.uniform(0.1, 6) + (9 if kind == "negative" else -2) for _ in range(m)])
        labels = [rng.random() < 0.5 for _ in range(n)]
        beta, wd, wu = 0.3, 1.0, 1.7
        kl = (policy_kl - ref_kl).mean().clamp(min=0) if m else tensor(0.0)
        ratio = policy - ref
        losses = torch.stack([wd * (1 - torch.sigmoid(beta * (r - kl))) if y else
                              wu * (1 - torch.sigmoid(beta * (kl - r))) for r, y in zip(ratio, labels)])
        case("kto", {"beta": beta, "desirable_weight": wd, "undesirable_weight": wu},
             {"policy_logps": numbers(policy), "ref_logps": numbers(ref), "policy_kl_logps": numbers(policy_kl),
              "ref_kl_logps": numbers(ref_kl), "labels": labels},
             losses.mean(), losses, {"policy_logps": policy}, metrics={"kl": kl.item()})


def reward_cases():
    for centre in (0.0, 0.01):
        for scale in (1, 800):
            c, r = (tensor([rng.gauss(0, scale) for _ in range(5)], True) for _ in range(2))
            margins = tensor([rng.uniform(0, 2) for _ in range(5)])
            losses = -F.logsigmoid(c - r - margins) + centre * (c + r) ** 2
            case("reward", {"center_rewards_coefficient": centre},
                 {"chosen_rewards": numbers(c), "rejected_rewards": numbers(r), "margins": numbers(margins)},
                 losses.mean(), losses, {"chosen_rewards": c, "rejected_rewards": r},
                 metrics={"accuracy": (c > r).to(D).mean().item(), "margin": (c - r).mean().item(),
                          "min_reward": torch.cat([c, r]).min().item(), "max_reward": torch.cat([c, r]).max().item()})


def advantages(rewards, groups, s):
    out = [0.0] * len(rewards)
    for g in set(groups):
        rows = [i for i, r in enumerate(rewards) if groups[i] == g and r is not None]
        if len(rows) < 2:
            continue
        for i in rows:
            others = [rewards[j] for j in rows if not (s.get("leave_one_out") and j == i)]
            mean = sum(others) / len(others)
            a = rewards[i] - mean
            if s["advantage_std"] != "none" and max(others) != min(others):
                free = 1 if s["advantage_std"] == "sample" else 0
                std = math.sqrt(sum((x - mean) ** 2 for x in others) / (len(others) - free))
                a /= std + s["advantage_eps"]
            out[i] = a
    return out


def whitened(values, weights, eps):
    n = sum(weights)
    mean = sum(v * w for v, w in zip(values, weights)) / n
    var = sum(w * (v - mean) ** 2 for v, w in zip(values, weights)) / max(n - 1, 1)
    return [(v - mean) / math.sqrt(var + eps) if w else 0.0 for v, w in zip(values, weights)]


def policy_loss(s, lp, old, ref, sampling, mask, adv):
    """Token losses, and the loss of the batch."""
    losses, rows, tokens = [], [], 0.0
    for i in range(len(lp)):
        m = mask[i]
        o = old[i] if old else lp[i].detach()
        ratio = torch.exp(lp[i] - o)
        if s["sequence_ratio"]:
            ratio = torch.exp(((lp[i] - o) * m).sum() / m.sum().clamp(min=1)).expand_as(lp[i])
        a = adv[i]
        lo, hi = s["epsilon_low"], s["epsilon_high"]
        if s["clips_weight"]:
            loss = -ratio.detach().clamp(lo, hi) * a * lp[i]
        else:
            free = ratio.clamp(max=s["delta"]) if s["delta"] > 0 else ratio
            loss = -torch.min(free * a, ratio.clamp(1 - lo, 1 + hi) * a)
            if s["dual_clip"] > 0:
                loss = torch.where(a < 0, torch.min(loss, -s["dual_clip"] * a), loss)
        if s["correction"] != "none":
            apart = (o - sampling[i]).detach()
            if s["correction"].startswith("sequence"):
                apart = (apart * m).sum().expand_as(apart)
            w = torch.exp(apart)
            inside = (w >= s["correction_min"]) & (w <= s["correction_max"])
            w = w.clamp(s["correction_min"], s["correction_max"]) if "truncate" in s["correction"] else w * inside
            loss = loss * w
        if s["beta"] > 0:
            d = ref[i] - lp[i]
            kl = {"k1": -d, "k2": d * d / 2, "k3": torch.exp(d) - d - 1}[s["kl"]]
            loss = loss + s["beta"] * kl
        loss = torch.where(m > 0, loss, torch.zeros_like(loss))
        losses.append(loss)
        total, count = (loss * m).sum(), m.sum().clamp(min=1)
        rows.append({"token-mean": total, "seq-mean-token-mean": total / count, "seq-mean-token-sum": total,
                     "seq-mean-token-sum-norm": total / s["max_completion_length"]}[s["aggregation"]])
        tokens += m.sum().item()
    denominator = tokens if s["aggregation"] == "token-mean" else len(lp)
    return losses, torch.stack(rows).sum() / max(denominator, 1)


DEFAULTS = dict(sequence_ratio=False, clips_weight=False, epsilon_low=0.2, epsilon_high=0.2, dual_clip=0.0, delta=0.0,
                beta=0.0, kl="k3", aggregation="token-mean", max_completion_length=9, advantage_std="sample",
                advantage_eps=1e-4, leave_one_out=False, correction="none", correction_min=0.0, correction_max=3.0)
POLICY = {
    "grpo": dict(aggregation="seq-mean-token-mean"),
    "dr_grpo": dict(aggregation="seq-mean-token-sum-norm", advantage_std="none"),
    "dapo": dict(epsilon_high=0.28),
    "gspo": dict(sequence_ratio=True, epsilon_low=3e-4, epsilon_high=4e-4, aggregation="seq-mean-token-mean"),
    "cispo": dict(clips_weight=True, epsilon_low=0.0, epsilon_high=5.0),
    "rloo": dict(advantage_std="none", leave_one_out=True),
    "reinforce++": dict(advantage_eps=1e-8),
    "ppo": dict(),
}
VARIANTS = [
    {},
    {"epsilon_low": 0.1, "epsilon_high": 0.3, "beta": 0.04, "kl": "k1"},
    {"beta": 0.3, "kl": "k2", "aggregation": "seq-mean-token-sum", "dual_clip": 1.5},
    {"beta": 0.1, "kl": "k3", "aggregation": "token-mean", "delta": 1.3},
    {"correction": "token_truncate", "correction_max": 1.1, "aggregation": "seq-mean-token-mean"},
    {"correction": "token_mask", "correction_min": 0.7, "correction_max": 1.4, "beta": 0.02},
    {"correction": "sequence_truncate", "correction_max": 1.2},
    {"correction": "sequence_mask", "correction_min": 0.2, "correction_max": 2.5},
    {"advantage_std": "population", "advantage_eps": 1e-6},
    {"advantage_std": "none", "leave_one_out": True, "aggregation": "seq-mean-token-sum-norm"},
]


def policy_cases():
    for name, own in POLICY.items():
        for number, variant in enumerate(VARIANTS):
            if name == "reinforce++" and "advantage_std" in variant:
                continue
            s = {**DEFAULTS, **own, **variant}
            if name in ("cispo", "gspo") and "epsilon_low" in variant:
                s["epsilon_low"], s["epsilon_high"] = (0.2, 1.4) if name == "cispo" else (0.01, 0.02)
            lengths = [4, 1, 6, 3, 2, 5, 3]
            lp = [tensor([-rng.uniform(0.01, 3) for _ in range(n)], True) for n in lengths]
            near = lambda: [tensor([x + rng.gauss(0, 0.3) for x in numbers(row)]) for row in lp]
            old = near() if number % 4 != 3 else []
            ref, sampling = near(), near()
            mask = [tensor([float(rng.random() < 0.8) for _ in range(n)]) for n in lengths]
            mask[3] = tensor([0.0, 0.0, 0.0])
            mask[1] = tensor([1.0])
            fields = {"logps": [numbers(r) for r in lp], "ref_logps": [numbers(r) for r in ref],
                      "sampling_logps": [numbers(r) for r in sampling], "mask": [numbers(r) for r in mask]}
            if old:
                fields["old_logps"] = [numbers(r) for r in old]
            if name == "ppo":
                adv = [tensor([rng.gauss(0, 1) for _ in range(n)]) for n in lengths]
                fields["advantages"] = expected = [numbers(a) for a in adv]
            elif number == 1:
                expected = fields["advantages"] = [rng.gauss(0, 1) for _ in lengths]
                adv = [tensor(a) for a in expected]
            else:
                rewards = [1.0, 0.0, 0.25, None, 0.1, 0.1, 0.1] if number % 2 else [rng.gauss(0, 2) for _ in lengths]
                groups = [3, 3, 3, 3, 8, 8, 8] if number != 6 else [1, 2, 2, 2, 5, 5, 5]
                expected = (whitened([r or 0.0 for r in rewards],
                                     [0.0 if r is None else m.sum().item() for r, m in zip(rewards, mask)],
                                     s["advantage_eps"])
                            if name == "reinforce++" else advantages(rewards, groups, s))
                adv = [tensor(a) for a in expected]
                fields["rewards"], fields["groups"] = rewards, groups
            token_loss, loss = policy_loss(s, lp, old, ref, sampling, mask,
                                           [a if a.dim() else a.expand(n) for a, n in zip(adv, lengths)])
            settings = {k: v for k, v in s.items() if k not in ("sequence_ratio", "clips_weight") and
                        (k in variant or (k.startswith("epsilon") and "epsilon_low" in variant))}
            if s["aggregation"] == "seq-mean-token-sum-norm":
                settings["max_completion_length"] = 9
            if not any(r.requires_grad for r in token_loss):
                continue
            case(name, settings, fields, loss, None, {"logps": lp}, token_loss=[numbers(r) for r in token_loss],
                 advantages=expected)


def distill_cases():
    for number in range(18):
        kind = ("forward_kl", "reverse_kl", "jsd")[number % 3]
        top_k, tail = [(0, "drop"), (3, "drop"), (3, "renormalise"), (3, "ghost"), (1, "ghost"),
                       (7, "drop")][number // 3]
        B, S, V = 2, 3, 7
        scale = 40 if number % 5 == 4 else 2
        student = tensor([[[rng.gauss(0, scale) for _ in range(V)] for _ in range(S)] for _ in range(B)], True)
        teacher = tensor([[[rng.gauss(0, scale) for _ in range(V)] for _ in range(S)] for _ in range(B)])
        labels = [[rng.randrange(V) for _ in range(S)] for _ in range(B)]
        labels[0][1] = -100
        mask = tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
        T, alpha, mix, squared = 1 + 0.5 * (number % 4), 0.3 + 0.7 * (number % 2), 0.25, number % 2 == 0
        p, q = F.log_softmax(student / T, -1), F.log_softmax(teacher / T, -1)
        if top_k:
            index = teacher.topk(top_k, -1).indices
            kept_p, kept_q = p.gather(-1, index), q.gather(-1, index)
            if tail == "renormalise":
                kept_p, kept_q = F.log_softmax(kept_p, -1), F.log_softmax(kept_q, -1)
            if tail == "ghost" and top_k < V:
                rest = torch.ones_like(p).scatter(-1, index, 0.0)
                more = lambda x: torch.log((x.exp() * rest).sum(-1, keepdim=True).clamp(min=1e-8))
                kept_p, kept_q = torch.cat([kept_p, more(p)], -1), torch.cat([kept_q, more(q)], -1)
            p, q = kept_p, kept_q
        if kind == "forward_kl":
            each = (q.exp() * (q - p)).sum(-1)
        elif kind == "reverse_kl":
            each = (p.exp() * (p - q)).sum(-1)
        else:
            m = torch.logaddexp(math.log(1 - mix) + p, math.log(mix) + q)
            each = (mix * q.exp() * (q - m) + (1 - mix) * p.exp() * (p - m)).sum(-1)
        each = each * (T * T if squared else 1)
        lt = torch.tensor(labels)
        entropy = F.cross_entropy(student.transpose(1, 2), lt, reduction="none", ignore_index=-100)
        labelled = (mask * (lt >= 0)).sum()
        loss = alpha * (each * mask).sum() / mask.sum() + (1 - alpha) * (entropy * mask).sum() / labelled
        case("distill", {"divergence": kind, "temperature": T, "temperature_squared": squared, "alpha": alpha,
                         "top_k": top_k, "tail": tail, "jsd_beta": mix},
             {"student_logits": numbers(student), "teacher_logits": numbers(teacher), "labels": labels,
              "mask": numbers(mask)}, loss, None, {"student_logits": student})


def critic_cases():
    """PPO with the values of a critic, clipped around those of the rollouts."""
    for number, variant in enumerate([{}, {"vf_coef": 0.5, "value_clip": 0.1}, {"value_clip": 0.0, "vf_coef": 1.0},
                                      {"aggregation": "seq-mean-token-mean", "value_clip": 0.3}]):
        s = {**DEFAULTS, "vf_coef": 0.1, "value_clip": 0.2, **variant}
        lengths = [4, 1, 6, 3]
        spread = lambda scale: [tensor([rng.gauss(0, scale) for _ in range(n)]) for n in lengths]
        lp = [tensor([-rng.uniform(0.01, 3) for _ in range(n)], True) for n in lengths]
        old = [tensor([x + rng.gauss(0, 0.3) for x in numbers(row)]) for row in lp]
        values = [v.requires_grad_() for v in spread(1)]
        before = [tensor([x + rng.gauss(0, 0.3) for x in numbers(row)]) for row in values]
        returns, adv = spread(1), spread(1)
        mask = [tensor([float(rng.random() < 0.8) for _ in range(n)]) for n in lengths]
        mask[3] = tensor([0.0, 0.0, 0.0])
        mask[1] = tensor([1.0])
        token_loss, loss = policy_loss(s, lp, old, None, None, mask, adv)
        rows = []
        for i, v in enumerate(values):
            near = v.clamp(before[i] - s["value_clip"], before[i] + s["value_clip"]) if s["value_clip"] > 0 else v
            each = 0.5 * torch.max((v - returns[i]) ** 2, (near - returns[i]) ** 2) * mask[i]
            rows.append(each.sum() / (mask[i].sum().clamp(min=1) if "aggregation" in variant else 1))
        count = len(lp) if "aggregation" in variant else sum(m.sum() for m in mask)
        loss = loss + s["vf_coef"] * torch.stack(rows).sum() / count
        fields = {"logps": lp, "old_logps": old, "mask": mask, "advantages": adv, "values": values,
                  "old_values": before, "returns": returns}
        case("ppo", variant, {k: [numbers(r) for r in v] for k, v in fields.items()}, loss, None,
             {"logps": lp, "values": values}, token_loss=[numbers(r) for r in token_loss])


pair_cases()
kto_cases()
reward_cases()
policy_cases()
distill_cases()
critic_cases()
path = pathlib.Path(__file__).parent / "cases.json"
path.write_text('{"cases": [\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}\n")
print(len(cases), "cases,", path.stat().st_size, "bytes")
