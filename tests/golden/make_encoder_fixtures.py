"""Writes encoders/<name>/ for every entry of SPECS, computed by Hugging Face transformers.

Usage: python make_encoder_fixtures.py [name ...]      (CPU, float32, eager attention, no dropout)
A folder has a random tiny model (config.json, model.safetensors), a batch with padding on either side
(batch.json, as `bevatron score --batch` takes it), and what transformers makes of it: outputs and
gradients (expected.safetensors), losses and ten AdamW steps (expected.json).
"""

import copy
import json
import math
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parent / "encoders"
VERSIONS = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
STEPS = 10
ADAMW = dict(lr=3e-3, beta1=0.9, beta2=0.95, weight_decay=0.1, clip_grad=1.0)
IGNORED = -100


@dataclass
class Spec:
    name: str
    cls: str  # of transformers
    config: dict
    lengths: tuple = (13, 9, 11, 6)  # of the rows
    sides: str = "nlrr"  # where a row is padded: not at all, left, right
    labels: str = "tokens"  # tokens, pairs, classes, numbers, token classes, spans, none
    wrong: dict = field(default_factory=dict)  # settings that must move the outputs
    eps: float = 1e-5  # of AdamW
    pad_inside: bool = False  # a padding token that the mask does not hide


BERT = dict(vocab_size=31, hidden_size=12, num_hidden_layers=2, num_attention_heads=4, intermediate_size=18,
            max_position_embeddings=19, type_vocab_size=3, layer_norm_eps=1e-12, hidden_act="gelu",
            initializer_range=0.02, bos_token_id=None)
ROBERTA = BERT | dict(max_position_embeddings=21, pad_token_id=1, bos_token_id=0, eos_token_id=2, layer_norm_eps=1e-5)
MODERN = dict(vocab_size=31, hidden_size=12, num_hidden_layers=4, num_attention_heads=2, intermediate_size=10,
              max_position_embeddings=32, local_attention=6, pad_token_id=3, bos_token_id=1, eos_token_id=2,
              cls_token_id=1, sep_token_id=2, layer_types=None)

SPECS = [
    Spec("bert_pairs", "BertForPreTraining", BERT, labels="pairs",
         wrong={"eps": {"layer_norm_eps": 1e-2}}),
    Spec("bert_masked", "BertForMaskedLM", BERT | dict(hidden_act="relu", num_attention_heads=3, hidden_size=15,
                                                      intermediate_size=17)),
    Spec("bert_bare", "BertModel", BERT, labels="none"),
    Spec("bert_classes", "BertForSequenceClassification", BERT | dict(
         num_labels=3), labels="classes"),
    Spec("bert_number", "BertForSequenceClassification", BERT | dict(
         num_labels=1), labels="numbers"),
    Spec("bert_tags", "BertForTokenClassification", BERT | dict(num_labels=5),
         labels="token classes"),
    Spec("bert_spans", "BertForQuestionAnswering", BERT, labels="spans"),
    Spec("megatron_bert_pairs", "MegatronBertForPreTraining", BERT | dict(num_hidden_layers=3),
         labels="pairs"),
    Spec("megatron_bert_masked", "MegatronBertForMaskedLM", BERT | dict(hidden_size=20)),
    Spec("roberta_masked", "RobertaForMaskedLM", ROBERTA | dict(type_vocab_size=1), pad_inside=True),
    Spec("roberta_classes", "RobertaForSequenceClassification", ROBERTA | dict(type_vocab_size=1, num_labels=3), labels="classes"),
    Spec("modernbert_masked", "ModernBertForMaskedLM", MODERN | dict(vocab_size=41, hidden_size=16,
         num_attention_heads=4, intermediate_size=14, num_hidden_layers=5), eps=1e-8,
         wrong={"full": {"local_attention": 64}, "one base": {"rope_parameters": {
             "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
             "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}}),
    Spec("modernbert_biases", "ModernBertForMaskedLM", MODERN | dict(norm_bias=True, attention_bias=True, mlp_bias=True,
         classifier_bias=True, decoder_bias=False, classifier_activation="silu", num_hidden_layers=2)),
    Spec("modernbert_mean", "ModernBertForSequenceClassification", MODERN | dict(classifier_pooling="mean",
         num_labels=3, num_hidden_layers=2), labels="classes"),
    Spec("modernbert_tags", "ModernBertForTokenClassification", MODERN | dict(num_labels=4, num_hidden_layers=2),
         labels="token classes"),
]


def make_model(spec, change={}):
    cls = getattr(transformers, spec.cls)
    config = cls.config_class(**copy.deepcopy(spec.config | change))
    return cls._from_config(config, attn_implementation="eager").float().eval()


@torch.no_grad()
def randomise(model, generator):
    """Every parameter random: no ones in norms, no zeros in biases."""
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if "embeddings" in name and p.ndim == 2:
            noise *= 0.5
        elif p.ndim >= 2:
            noise *= 1.6 / math.sqrt(p.shape[1])
        elif name.endswith("bias") or name.endswith("predictions.bias"):
            noise *= 0.2
        else:
            noise = 0.25 * noise + 1.0
        p.copy_(noise)


def draw(n, end, generator):
    return torch.randint(end, (n,), generator=generator).tolist()


def make_batch(spec, config, generator):
    """Rows padded on either side, with everything that the model reads."""
    columns, pad = max(spec.lengths) + 1, config.pad_token_id
    ids, mask, types, labels = [], [], [], []
    # transformers' heads on sequences read the first column, even if it is padding.
    reads_first = spec.labels in ("pairs", "classes", "numbers", "none") and "mean" not in spec.name
    for length, side in zip(spec.lengths, spec.sides.replace("l", "r") if reads_first else spec.sides):
        free = columns - length
        left = free if side == "l" else 0
        row = [t if t != pad else 7 for t in draw(length, config.vocab_size, generator)]
        if spec.pad_inside and side == "n":
            row[4] = pad
        if side == "n" and length < columns:
            row, length = row + [11] * (columns - length), columns
        ids.append([pad] * left + row + [pad] * (columns - left - length))
        mask.append([0] * left + [1] * length + [0] * (columns - left - length))
        types.append([t * m for t, m in zip(draw(columns, getattr(config, "type_vocab_size", 1), generator), mask[-1])])
        chosen = torch.rand(columns, generator=generator) < 0.4
        labels.append([draw(1, config.vocab_size, generator)[0] if c and m else IGNORED
                       for c, m in zip(chosen.tolist(), mask[-1])])
    if spec.labels == "none":
        types[0] = [0] * columns  # a row as it is embedded
    batch = {"input_ids": ids, "attention_mask": mask}
    if getattr(config, "type_vocab_size", 0) > 1:
        batch["token_type_ids"] = types
    rows = len(ids)
    if spec.labels in ("tokens", "pairs"):
        batch["labels"] = labels
    if spec.labels == "pairs":
        batch["next_sentence_label"] = [i % 2 for i in range(rows)]
    if spec.labels == "classes":
        batch["class_labels"] = draw(rows, config.num_labels, generator)
    if spec.labels == "numbers":
        batch["class_labels"] = [round(x, 3) for x in torch.randn(rows, generator=generator).tolist()]
    if spec.labels == "token classes":
        batch["labels"] = [[t % config.num_labels if t != IGNORED else t for t in row] for row in labels]
    if spec.labels == "spans":
        used = [[c for c, m in enumerate(row) if m] for row in mask]
        batch["start_positions"] = [row[1] for row in used]
        batch["end_positions"] = [row[-2] for row in used]
    return batch


def forward(spec, model, batch):
    tensors = {name: torch.tensor(value) for name, value in batch.items()}
    if spec.labels in ("classes", "numbers"):
        tensors["labels"] = tensors.pop("class_labels")
    return model(**tensors)


def outputs_of(spec, model, out, batch):
    """By the names of `score --outputs`, zeros where there is no token."""
    mask = torch.tensor(batch["attention_mask"], dtype=torch.float32)
    base = getattr(model, model.base_model_prefix, model)
    inputs = {k: torch.tensor(batch[k]) for k in ("input_ids", "attention_mask", "token_type_ids") if k in batch}
    hidden = base(**inputs)
    found = {"last_hidden_state": hidden.last_hidden_state * mask[..., None]}
    if getattr(hidden, "pooler_output", None) is not None:
        found["pooler_output"] = hidden.pooler_output
    if spec.labels in ("tokens", "token classes"):
        found["logits"] = out.logits * mask[..., None]
    if spec.labels == "pairs":
        found["logits"] = out.prediction_logits * mask[..., None]
        found["seq_relationship_logits"] = out.seq_relationship_logits
    if spec.labels in ("classes", "numbers"):
        found["logits"] = out.logits
    if spec.labels == "spans":
        found["start_logits"], found["end_logits"] = out.start_logits * mask, out.end_logits * mask
    return {name: t.detach().contiguous().clone() for name, t in found.items()}


def mask_spans(spec, model):
    """transformers takes the softmax of spans over padding too; here it is over the tokens."""
    if spec.labels != "spans":
        return model.forward
    original = model.forward

    def forward_masked(**tensors):
        start, end = tensors.pop("start_positions"), tensors.pop("end_positions")
        out = original(**tensors)
        hidden = tensors["attention_mask"] == 0
        losses = [torch.nn.functional.cross_entropy(l.masked_fill(hidden, -1e30), t)
                  for l, t in ((out.start_logits, start), (out.end_logits, end))]
        out.loss = (losses[0] + losses[1]) / 2
        return out

    model.forward = forward_masked
    return original


@torch.no_grad()
def gradients(model):
    holder = copy.deepcopy(model)
    for to, p in zip(holder.parameters(), model.parameters()):
        to.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
    with tempfile.TemporaryDirectory() as folder:
        holder.save_pretrained(folder)
        return {"grad." + n: g for n, g in load_file(Path(folder) / "model.safetensors").items()}


def total_norm(model):
    return torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).item()


def train(spec, model, batch):
    plain = lambda n, p: p.ndim < 2 or n.endswith("bias")
    named = list(model.named_parameters())
    groups = [{"params": [p for n, p in named if not plain(n, p)], "weight_decay": ADAMW["weight_decay"]},
              {"params": [p for n, p in named if plain(n, p)], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=spec.eps,
                                  foreach=False)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = forward(spec, model, batch).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), ADAMW["clip_grad"], foreach=False).item())
        optimizer.step()
        losses.append(loss.item())
    return ADAMW | {"eps": spec.eps, "losses": losses, "grad_norms": norms}


def build(spec, seed, folder):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = make_model(spec)
    randomise(model, generator)
    batch = make_batch(spec, model.config, generator)
    (folder / "batch.json").write_text(json.dumps(batch) + "\n")
    model.save_pretrained(folder)
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors", "batch.json"):
            file.unlink()
    mask_spans(spec, model)
    out = forward(spec, model, batch)
    tensors = outputs_of(spec, model, out, batch)
    for label, change in spec.wrong.items():
        other = make_model(spec, change)
        other.load_state_dict(model.state_dict())
        moved = outputs_of(spec, other, forward(spec, other, batch), batch)["last_hidden_state"]
        assert (moved - tensors["last_hidden_state"]).abs().max() > 2e-3, f"{spec.name}: {label} changes nothing"
    expected = {"versions": VERSIONS}
    if spec.labels != "none":
        model.zero_grad()
        out.loss.backward()
        expected |= {"loss": out.loss.item(), "grad_norm": total_norm(model)}
        tensors |= gradients(model)
        expected["adamw"] = train(spec, model, batch)  # last: it changes the weights
    save_file(tensors, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    return expected


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    wanted = set(sys.argv[1:])
    for index, spec in enumerate(SPECS):
        if wanted and spec.name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            expected = build(spec, 100 * (index + 1), Path(scratch))
            shutil.rmtree(ROOT / spec.name, ignore_errors=True)
            shutil.copytree(scratch, ROOT / spec.name)
        size = sum(f.stat().st_size for f in (ROOT / spec.name).iterdir())
        losses = expected.get("adamw", {}).get("losses", [math.nan])
        print(f"{spec.name}: {size // 1024} KB, loss {expected.get('loss', math.nan):.3f}, {losses[0]:.2f} -> {losses[-1]:.2f}")


if __name__ == "__main__":
    main()
