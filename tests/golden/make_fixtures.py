"""Writes models/<name>/ for every entry of fixture_specs.py, computed by Hugging Face transformers.

Usage: python make_fixtures.py [name ...]      (CPU, float32, eager attention, no dropout)
A random model that fails a check (near tie in greedy decoding, flat gradient, setting without effect) is
drawn again from the next seed.
"""

import copy
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from fixture_specs import SPECS

ROOT = Path(__file__).resolve().parent / "models"
NEW_TOKENS = 12
STEPS = 10
ADAMW = dict(lr=3e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip_grad=1.0)
VERSIONS = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
IGNORED = -100


# Computed in float64, whatever dtype transformers casts to inside: normalised heads of few dims and strong decays
# amplify what float32 rounds.
WIDE = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")


class WideTorch:
    """torch with float64 in place of float32."""

    float = float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def widen(model):
    sys.modules[type(model).__module__].torch = WideTorch()
    torch.Tensor.float = torch.Tensor.double
    return model.double()


def narrow(tensors):
    return {n: t.to(torch.float32) if t.dtype == torch.float64 else t for n, t in tensors.items()}


class Rejected(Exception):
    """This seed's model is not a good fixture."""


def require(condition, text):
    if not condition:
        raise Rejected(text)


def make_model(model_type, config):
    config = AutoConfig.for_model(model_type, **copy.deepcopy(config))
    eager = dict(attn_implementation="eager", experts_implementation="eager")
    model = AutoModelForCausalLM.from_config(config, **eager).eval()
    return widen(model) if model_type in WIDE else model.to(torch.float32)


@torch.no_grad()
def randomise(model, gain, generator):
    """Every parameter random: no ones in norms, no zeros in biases."""
    # norms multiply by 1 + w
    centred_at_zero = model.config.model_type in ("gemma", "gemma2", "gemma3_text", "nemotron") + WIDE
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        wide = model.config.model_type in WIDE
        if wide and name.endswith("A_log"):  # some heads forget within a few tokens, some hardly at all
            noise = 1.2 * noise - 1.0
        elif wide and name.endswith("dt_bias"):
            noise *= 0.2
        elif wide and name.endswith("conv1d.weight"):
            noise *= 0.5
        elif name.endswith("A_log"):  # states that remember some tokens
            noise = 0.6 * noise - 0.5
        elif name.endswith("dt_bias"):
            noise = 0.7 * noise - 1.0
        elif name.endswith("conv1d.weight"):
            noise *= 0.6
        elif name.endswith(("wte.weight", "wpe.weight", "embed_tokens.weight", "embed_in.weight", "embeddings.weight")):
            noise *= 0.35
        elif p.ndim >= 2:
            conv1d = model.config.model_type == "gpt2" and "lm_head" not in name
            noise *= gain * 1.3 / math.sqrt(p.shape[0] if conv1d else p.shape[1])
        elif name.endswith("bias"):
            noise *= 0.2
        else:
            plain = name.endswith("linear_attn.norm.weight")
            noise = 0.25 * noise + (0.0 if centred_at_zero and not plain else 1.0)
        p.copy_(noise)
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            b.copy_(0.3 * torch.randn(b.shape, generator=generator))


def reset_rotary(model):
    """Undo the memory of dynamic RoPE, so that each forward depends on its own length only."""
    for m in model.modules():
        if getattr(m, "rope_type", None) == "dynamic":
            m.inv_freq = m.original_inv_freq.clone()
            m.max_seq_len_cached = m.original_max_seq_len


def forward(model, ids):
    reset_rotary(model)
    return model(input_ids=torch.tensor(ids), use_cache=False).logits


def loss_sum(logits, labels):
    """Sum over the valid shifted labels, and their number."""
    shifted = torch.tensor(labels)[:, 1:]
    total = F.cross_entropy(logits[:, :-1].flatten(0, 1), shifted.flatten(), ignore_index=IGNORED, reduction="sum")
    return total, int((shifted != IGNORED).sum())


def random_row(length, vocab, generator):
    """Skewed to small ids, so that there is something to learn."""
    u = torch.rand(length, generator=generator)
    return (u**1.7 * vocab).long().clamp(max=vocab - 1).tolist()


def mask_labels(rows, generator):
    labels = [list(r) for r in rows]
    for row in labels:
        for i in range(len(row)):
            if torch.rand(1, generator=generator).item() < 0.15:
                row[i] = IGNORED
    labels[-1][: len(labels[-1]) // 4] = [IGNORED] * (len(labels[-1]) // 4)  # a prompt
    return labels


@torch.no_grad()
def gradients(model):
    """Under the names and in the parts of model.safetensors, by saving a model whose weights they are."""
    holder = copy.deepcopy(model)
    for to, p in zip(holder.parameters(), model.parameters()):
        to.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
    with tempfile.TemporaryDirectory() as folder:
        holder.save_pretrained(folder)
        return {"grad." + n: g for n, g in load_file(Path(folder) / "model.safetensors").items()}


def total_norm(model):
    return torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None],
                                        foreach=False).item()


def measure(model, tokens):
    """One forward and backward over rows of equal length, through the model's own loss."""
    model.zero_grad()
    reset_rotary(model)
    out = model(input_ids=torch.tensor(tokens["input_ids"]), labels=torch.tensor(tokens["labels"]), use_cache=False)
    out.loss.backward()
    _, count = loss_sum(out.logits.detach(), tokens["labels"])
    return ({"logits": out.logits.detach().contiguous(), **gradients(model)},
            {"loss": out.loss.item(), "tokens": count, "grad_norm": total_norm(model)})


def measure_ragged(model, tokens):
    """Rows alone, without padding; the loss is the mean over all rows' valid labels."""
    model.zero_grad()
    logits = [forward(model, [row]) for row in tokens["input_ids"]]
    parts = [loss_sum(l, [row]) for l, row in zip(logits, tokens["labels"])]
    count = sum(n for _, n in parts)
    loss = sum(s for s, _ in parts) / count
    loss.backward()
    tensors = {f"logits.{i}": l.detach()[0].contiguous() for i, l in enumerate(logits)}
    return tensors | gradients(model), {"loss": loss.item(), "tokens": count, "grad_norm": total_norm(model)}


def train(model, batches, options):
    decayed = [p for n, p in model.named_parameters() if p.ndim >= 2 and not n.endswith("bias")]
    plain = [p for n, p in model.named_parameters() if p.ndim < 2 or n.endswith("bias")]
    groups = [{"params": decayed, "weight_decay": options["weight_decay"]}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options["lr"], betas=(options["beta1"], options["beta2"]),
                                  eps=options["eps"], foreach=False)
    losses, norms = [], []
    for batch in batches:
        optimizer.zero_grad()
        reset_rotary(model)
        ids = torch.tensor(batch)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options["clip_grad"], foreach=False)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return losses, norms


@torch.no_grad()
def shake(model, generator):
    """The model with weights moved as much as float32 rounds them."""
    shaken = copy.deepcopy(model)
    for p in shaken.parameters():
        p.mul_(1 + 1e-7 * torch.randn(p.shape, generator=generator))
    return shaken


def check_steps(shaken, steps):
    """Steps that rounding of weights moves say nothing about another program."""
    apart = max(abs(a - b) for a, b in zip(shaken[0], steps[0]))
    norms = max(abs(a / b - 1) for a, b in zip(shaken[1], steps[1]))
    require(apart < 3e-5 and norms < 6e-5, f"rounded weights move losses by {apart:.1e}, norms by {norms:.1e}")


def cache_safe(config, prompt_length):
    """False where the rotary frequencies change while decoding: keys cached earlier would be stale."""
    parameters = getattr(config, "rope_parameters", None) or {}
    last = prompt_length + NEW_TOKENS - 1
    if parameters.get("rope_type") == "dynamic":
        return last <= config.max_position_embeddings
    if parameters.get("rope_type") == "longrope":
        limit = parameters["original_max_position_embeddings"]
        return last <= limit or prompt_length > limit
    return True


@torch.no_grad()
def decode(model, prompts):
    generated, gap = [], math.inf
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(NEW_TOKENS):
            top = forward(model, [ids])[0, -1].topk(2)
            gap = min(gap, (top.values[0] - top.values[1]).item())
            ids.append(top.indices[0].item())
        generated.append(ids[len(prompt):])
    require(gap > 2e-3, f"greedy gap {gap:.1e}")
    return {"prompts": prompts, "max_new_tokens": NEW_TOKENS, "generated": generated,
            "cache_safe": [cache_safe(model.config, len(p)) for p in prompts]}


def merged(base, change):
    out = dict(base)
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merged(out[key], value) if both else value
    return out


@torch.no_grad()
def contrast(spec, model, ids, logits):
    """How far each wrong setting would move the logits."""
    moved = {}
    for label, change in spec.contrasts.items():
        other = make_model(spec.model_type, merged(spec.config, change))
        other.load_state_dict(model.state_dict())
        moved[label] = (forward(other, ids) - logits).abs().max().item()
        require(moved[label] > 2e-4, f"{label} moves logits by {moved[label]:.1e} only")
    return moved


def check(tensors, flat):
    logits = tensors["logits"]
    require(logits.std() > 0.5 and logits.abs().max() < 10, f"logits {logits.std():.2f} {logits.abs().max():.2f}")
    for name, g in tensors.items():
        if name.endswith(flat):
            continue
        # An expert may have no tokens at all.
        if name.startswith("grad.") and not (".experts." in name and g.abs().max() == 0):
            require(g.abs().max() > 1e-3, f"{name} is flat")


def config_v4(config):
    """The same model as transformers 4.x wrote it: RoPE settings at the top level, torch_dtype."""
    out = {k: v for k, v in config.items() if k not in ("rope_parameters", "dtype", "layer_types", "is_decoder")}
    if config["model_type"] == "qwen3_next":
        out["layer_types"] = config["layer_types"]
    out |= {"torch_dtype": config["dtype"], "transformers_version": "4.57.6"}
    if "time_step_limit" in out:
        out["time_step_limit"] = [0.0, math.inf]
    if "layers_block_type" in out:
        letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
        out["hybrid_override_pattern"] = "".join(letters[kind] for kind in out.pop("layers_block_type"))
    if config["model_type"] == "granitemoehybrid":
        old = {"linear_attention": "mamba", "full_attention": "attention"}
        out["layer_types"] = [old[kind] for kind in config["layer_types"]]
    if "rope_parameters" not in config:
        return dict(sorted(out.items()))
    parameters = copy.deepcopy(config["rope_parameters"])
    if config["model_type"] == "olmo3":
        parameters = parameters["full_attention"]
    if config["model_type"] == "gemma3_text":
        out["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        out["sliding_window_pattern"] = config["layer_types"].index("full_attention") + 1
        out.pop("_sliding_window_pattern", None)
        parameters = parameters["full_attention"]
    out["rope_theta"] = parameters.pop("rope_theta")
    if "partial_rotary_factor" in parameters:
        out["partial_rotary_factor"] = parameters.pop("partial_rotary_factor")
    if parameters["rope_type"] == "longrope":  # older key, and the length lives outside
        parameters["type"] = parameters.pop("rope_type")
        del parameters["original_max_position_embeddings"]
    out["rope_scaling"] = parameters
    if parameters == {"rope_type": "default"}:  # OLMo refuses it, Llama 4 takes any object for llama3's scaling
        out["rope_scaling"] = None
    return dict(sorted(out.items()))


def write_json(path, value, indent=None):
    path.write_text(json.dumps(value, indent=indent) + "\n")


def build(spec, seed, folder):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = make_model(spec.model_type, spec.config)
    randomise(model, spec.gain, generator)
    vocab = model.config.vocab_size
    rows = lambda lengths: [random_row(n, vocab, generator) for n in lengths]

    input_ids = rows([spec.length] * spec.rows)
    tokens = {"input_ids": input_ids, "labels": mask_labels(input_ids, generator)}
    if spec.ignored_row:
        tokens["labels"][1] = [IGNORED] * spec.length
    ragged_ids = rows(spec.ragged)
    prompts = rows(spec.prompts)
    distinct = [rows([spec.length] * 2) for _ in range(4)]  # seen again, so that the loss falls
    batches = [distinct[i % len(distinct)] for i in range(STEPS)]

    tensors, expected = measure(model, tokens)
    check(tensors, spec.flat)
    moved = contrast(spec, model, tokens["input_ids"], tensors["logits"])
    copy.deepcopy(model).to(torch.float32).save_pretrained(folder)
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    stored = set(load_file(folder / "model.safetensors"))
    assert {"grad." + n for n in stored} | {"logits"} == set(tensors), "names differ from the stored ones"
    write_json(folder / "tokens.json", tokens)
    write_json(folder / "token_batches.json", {"batches": batches})
    save_file(narrow(tensors), folder / "expected.safetensors")
    if ragged_ids:
        ragged = {"input_ids": ragged_ids, "labels": mask_labels(ragged_ids, generator)}
        ragged_tensors, ragged_expected = measure_ragged(model, ragged)
        write_json(folder / "tokens_ragged.json", ragged)
        write_json(folder / "expected_ragged.json", ragged_expected | {"versions": VERSIONS}, indent=1)
        save_file(ragged_tensors, folder / "expected_ragged.safetensors")
    if spec.v4:
        config = json.loads((folder / "config.json").read_text())
        write_json(folder / "config_v4.json", config_v4(config), indent=2)

    greedy = decode(model, prompts)
    options = ADAMW | spec.adamw
    shaken = shake(model, generator) if spec.model_type in WIDE else None
    losses, norms = train(model, batches, options)  # last: it changes the weights
    if shaken is not None:
        check_steps(train(shaken, batches, options), (losses, norms))
    expected |= {"adamw": options | {"losses": losses, "grad_norms": norms}, "greedy": greedy, "versions": VERSIONS}
    write_json(folder / "expected.json", expected, indent=1)
    return expected, tensors["logits"], moved


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    wanted = set(sys.argv[1:])
    for index, spec in enumerate(SPECS):
        if wanted and spec.name not in wanted:
            continue
        for seed in range(1000 * (index + 1), 1000 * (index + 1) + 200):
            try:
                with tempfile.TemporaryDirectory() as scratch:
                    expected, logits, moved = build(spec, seed, Path(scratch))
                    shutil.rmtree(ROOT / spec.name, ignore_errors=True)
                    (ROOT / spec.name).mkdir(parents=True)
                    for file in Path(scratch).iterdir():
                        shutil.copyfile(file, ROOT / spec.name / file.name)
                break
            except Rejected as reason:
                print(f"{spec.name} seed {seed}: {reason}")
        else:
            sys.exit(f"{spec.name}: no seed passes")
        size = sum(f.stat().st_size for f in (ROOT / spec.name).iterdir())
        run = expected["adamw"]
        print(f"{spec.name}: {size // 1024} KB, seed {seed}, loss {expected['loss']:.3f}, logits std {logits.std():.2f}"
              f" max {logits.abs().max():.2f}, losses {run['losses'][0]:.2f} -> {run['losses'][-1]:.2f}, norms"
              f" {min(run['grad_norms']):.2f}..{max(run['grad_norms']):.2f} clip {run['clip_grad']}")
        print("   moved by:", ", ".join(f"{k} {v:.1e}" for k, v in moved.items()))


if __name__ == "__main__":
    main()
