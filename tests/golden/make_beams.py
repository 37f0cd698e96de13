"""Beam searches of Hugging Face transformers, for tests/infer/beam_search_test.cpp.

    pip install torch transformers numpy
    python make_beams.py [FILE]               # rewrites beams/beams.json, or FILE
    python make_beams.py --random N S FILE    # only N cases drawn with seed S, for a longer comparison

The model is a pair of tables of R rows, so that a test needs no model: the logits after tokens .. a, b are
last[b % R] + previous[a % R]. Entries are in units of 1/64; sums of two are exact in float32.
"""
import json
import math
import os
import random
import sys
import zlib

import torch
import transformers
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

HERE = os.path.dirname(os.path.abspath(__file__))
UNIT = 64
EARLY = {"true": True, "false": False, "never": "never"}
log_softmax = torch.nn.functional.log_softmax


class TableConfig(PretrainedConfig):
    model_type = "table"


class TableModel(PreTrainedModel, GenerationMixin):
    config_class = TableConfig

    def __init__(self, table):
        super().__init__(TableConfig(vocab_size=table["vocab"]))
        self.last = torch.nn.Parameter(torch.tensor(table["last"], dtype=torch.float32) / UNIT)
        self.previous = torch.nn.Parameter(torch.tensor(table["previous"], dtype=torch.float32) / UNIT)

    def forward(self, input_ids, attention_mask=None, **ignored):
        rows = input_ids % len(self.last)
        logits = self.last[rows]
        logits[:, 1:] += self.previous[rows[:, :-1]]
        return CausalLMOutput(logits=logits)

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **ignored):
        return {"input_ids": input_ids}


def random_table(vocab, seed, deviation=2.0, step=1, twins=False, ends=(), end_shift=0.0, rows=None):
    """step > 1 makes logits of a row equal; twins: tokens 2i and 2i + 1 are alike, before and after."""
    generator = torch.Generator().manual_seed(seed)

    def draw(scale):
        x = torch.randn(rows or vocab, vocab, generator=generator) * scale
        x[:, list(ends)] += end_shift
        x = (x * UNIT / step).round().int() * step
        if twins:
            even = torch.arange(vocab) // 2 * 2
            x = x[even][:, even]
        return x.tolist()

    return {"vocab": vocab, "last": draw(deviation), "previous": draw(deviation / 2)}


def tables():
    return {
        "v40": random_table(40, 1),
        "v40_flat": random_table(40, 2, 0.5),
        "v24_end": random_table(24, 3, 1.5, ends=(3,), end_shift=1.5),
        "v12": random_table(12, 4, 1.0),
        "v10_ties": random_table(10, 5, 1.0, step=64),
        "v8_twins": random_table(8, 6, 1.0, twins=True),
        "v5": random_table(5, 7, 1.0),
        "v5_end": random_table(5, 8, 1.0, ends=(1,), end_shift=1.5),
        "v70_flat": random_table(70, 9, 0.25, step=4, rows=20),
        "v200_ties": random_table(200, 11, 1.0, step=32, rows=7),
        "v3": random_table(3, 10, 1.0),
    }


def generate(model, case):
    ends = case["end_tokens"]
    optional = {
        "no_repeat_ngram_size": case["no_repeat_ngram_size"] or None,
        "forced_bos_token_id": case["forced_bos_token"] if case["forced_bos_token"] >= 0 else None,
        "forced_eos_token_id": case["forced_eos_token"] if case["forced_eos_token"] >= 0 else None,
        "min_new_tokens": case["min_new_tokens"] or None,
        "repetition_penalty": case["repetition_penalty"] if case["repetition_penalty"] != 1 else None,
        "sequence_bias": {(t,): -math.inf if b is None else b for t, b in case["logit_bias"]} or None,
    }
    ids = torch.tensor([case["prompt"]])
    model.generation_config = transformers.GenerationConfig()
    with torch.no_grad():
        return model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, use_cache=False, return_dict_in_generate=True,
            output_scores=True, pad_token_id=0, eos_token_id=ends or None, num_beams=case["num_beams"],
            num_return_sequences=case["num_return_sequences"], length_penalty=case["length_penalty"],
            early_stopping=EARLY[case["early_stopping"]], max_new_tokens=case["max_new_tokens"],
            **{k: v for k, v in optional.items() if v is not None})


def results_of(model, case):
    out = generate(model, case)
    results = []
    for row, indices, score in zip(out.sequences, out.beam_indices, out.sequences_scores.tolist()):
        length = int((indices >= 0).sum())
        whole = row[: len(case["prompt"]) + length]
        log_probs = log_softmax(model(whole[None]).logits[0].double(), dim=-1)[len(case["prompt"]) - 1 : -1]
        tokens = whole[len(case["prompt"]) :]
        logprobs = log_probs.gather(1, tokens[:, None])[:, 0] if length else log_probs[:0, 0]
        results.append({"tokens": tokens.tolist(), "logprobs": [round(x, 7) for x in logprobs.tolist()],
                        "score": score, "ended": length > 0 and int(tokens[-1]) in case["end_tokens"]})
    return results


def rounded_log_softmax(seed):
    """log_softmax in float32, where the last bit of the logarithm of the sum is a hash of the row. Equal rows stay
    equal, so that ties between beams that are meant stay ties."""

    def rounded(x, dim):
        largest = x.max(dim, keepdim=True).values
        log_sum = (x - largest).double().exp().sum(dim, keepdim=True).log().float()
        for row in range(len(x)):
            ulps = zlib.crc32(bytes([seed]) + x[row].numpy().tobytes()) % 3 - 1
            log_sum[row] += ulps * torch.finfo(torch.float32).eps * log_sum[row]
        return x - largest - log_sum

    return rounded


def stable_results(model, case):
    """None where the rounding of log_softmax decides the tokens, which differs between CPUs."""
    results = results_of(model, case)
    try:
        for seed in range(6):
            torch.nn.functional.log_softmax = rounded_log_softmax(seed)
            if [r["tokens"] for r in results_of(model, case)] != [r["tokens"] for r in results]:
                return None
    finally:
        torch.nn.functional.log_softmax = log_softmax
    return results


DEFAULTS = {"table": "v40", "prompt": [5, 9, 2], "num_beams": 3, "num_return_sequences": 0, "length_penalty": 1.0,
            "early_stopping": "false", "no_repeat_ngram_size": 0, "forced_bos_token": -1, "forced_eos_token": -1,
            "end_tokens": [3], "max_new_tokens": 12, "min_new_tokens": 0, "repetition_penalty": 1.0, "logit_bias": []}


def make_case(all_tables, **values):
    case = {**DEFAULTS, **values}
    case["prompt"] = [token % all_tables[case["table"]]["vocab"] for token in case["prompt"]]
    assert set(case) == set(DEFAULTS), set(case) - set(DEFAULTS)
    case["num_return_sequences"] = case["num_return_sequences"] or case["num_beams"]
    return case


def grid():
    cases = []
    for early in EARLY:
        for penalty in (-1.0, 0.0, 0.6, 1.0, 2.0):
            cases.append(dict(table="v24_end", num_beams=4, early_stopping=early, length_penalty=penalty))
            cases.append(dict(table="v40_flat", num_beams=2 + len(cases) % 4, early_stopping=early,
                              length_penalty=penalty, prompt=[11]))
        for beams in (2, 3, 4, 5):
            cases.append(dict(num_beams=beams, early_stopping=early, num_return_sequences=1, end_tokens=[]))
        for ends in ([3], [3, 17], [1, 2, 3, 4, 5, 6], [3, 3]):
            cases.append(dict(table="v24_end", end_tokens=ends, early_stopping=early, length_penalty=0.6,
                              num_return_sequences=2))
        cases.append(dict(table="v5", num_beams=4, end_tokens=[1], early_stopping=early))
        cases.append(dict(table="v5_end", num_beams=4, end_tokens=[1, 4], early_stopping=early, length_penalty=2.0))
        cases.append(dict(table="v5_end", num_beams=4, end_tokens=[0, 1, 2, 3], early_stopping=early))
        cases.append(dict(table="v5", num_beams=4, end_tokens=[1], no_repeat_ngram_size=2, early_stopping=early,
                          max_new_tokens=30))
        cases.append(dict(table="v10_ties", num_beams=4, end_tokens=[7], early_stopping=early, length_penalty=0.0))
        cases.append(dict(table="v8_twins", num_beams=5, end_tokens=[6], early_stopping=early))
        for penalty in (-1.0, 0.0, 1.0):
            cases.append(dict(table="v200_ties", num_beams=4, end_tokens=[9, 10], early_stopping=early,
                              length_penalty=penalty))
            cases.append(dict(table="v12", num_beams=2, end_tokens=[5, 6], early_stopping=early,
                              length_penalty=penalty, max_new_tokens=16))
            cases.append(dict(table="v5", num_beams=4, prompt=[0, 1], end_tokens=[4], early_stopping=early,
                              no_repeat_ngram_size=1, length_penalty=penalty))
            cases.append(dict(table="v8_twins", num_beams=5, prompt=[0], end_tokens=[4], early_stopping=early,
                              no_repeat_ngram_size=1, length_penalty=penalty, min_new_tokens=5))
    return cases


def rules():
    return [
        dict(table="v200_ties", num_beams=2, end_tokens=[], max_new_tokens=30),
        dict(table="v200_ties", num_beams=5, end_tokens=[1], repetition_penalty=1.3, no_repeat_ngram_size=2),
        dict(no_repeat_ngram_size=1), dict(no_repeat_ngram_size=2, table="v12", max_new_tokens=40),
        dict(no_repeat_ngram_size=3, table="v12", prompt=[1, 2, 3, 1, 2], max_new_tokens=30),
        dict(no_repeat_ngram_size=20), dict(table="v5", no_repeat_ngram_size=1, num_beams=4, end_tokens=[]),
        dict(forced_bos_token=7), dict(forced_bos_token=7, prompt=[4]), dict(forced_bos_token=3, prompt=[4]),
        dict(forced_bos_token=1, prompt=[4], table="v5", num_beams=4, end_tokens=[2]),
        dict(forced_bos_token=1, prompt=[4], table="v3", num_beams=4, end_tokens=[2]),
        dict(forced_eos_token=3), dict(forced_eos_token=6), dict(forced_eos_token=3, end_tokens=[]),
        dict(forced_eos_token=3, table="v5", num_beams=4, end_tokens=[1], length_penalty=-1.0),
        dict(forced_eos_token=3, prompt=[8], forced_bos_token=2, max_new_tokens=1),
        dict(forced_eos_token=3, prompt=[8], forced_bos_token=2, max_new_tokens=2),
        dict(min_new_tokens=5, table="v24_end", num_beams=4), dict(min_new_tokens=12, table="v24_end"),
        dict(min_new_tokens=20, table="v24_end"), dict(min_new_tokens=4, table="v5_end", end_tokens=[0, 1, 2]),
        dict(min_new_tokens=4, table="v24_end", end_tokens=[]),
        dict(repetition_penalty=1.3), dict(repetition_penalty=1.3, table="v12", max_new_tokens=30),
        dict(repetition_penalty=0.7, table="v12"), dict(repetition_penalty=3.0, table="v5", num_beams=4),
        dict(repetition_penalty=1.3, no_repeat_ngram_size=2, min_new_tokens=3, table="v12", num_beams=5),
        dict(logit_bias=[[3, 4.0]]), dict(logit_bias=[[3, None], [7, -2.5], [9, 0.5]], table="v24_end"),
        dict(logit_bias=[[2, 9.0]], repetition_penalty=1.3, table="v12"),
        dict(logit_bias=[[i, None] for i in range(1, 5)], table="v5", num_beams=4),
        dict(logit_bias=[[i, None] for i in range(5)], table="v5", num_beams=4),
        dict(logit_bias=[[i, None] for i in range(1, 5)], table="v5", num_beams=2, end_tokens=[0]),
        dict(max_new_tokens=1, num_beams=5), dict(max_new_tokens=2, num_beams=5), dict(max_new_tokens=64),
        dict(table="v5", max_new_tokens=1, num_beams=5, end_tokens=[]),
        dict(table="v5", max_new_tokens=40, num_beams=5, end_tokens=[2], length_penalty=-1.0),
        dict(table="v3", num_beams=5, end_tokens=[2], prompt=[0]),
        dict(table="v3", num_beams=5, end_tokens=[1, 2], prompt=[0, 1]),
        dict(table="v3", num_beams=8, end_tokens=[], prompt=[0, 1], no_repeat_ngram_size=2, max_new_tokens=20),
        dict(table="v3", num_beams=9, end_tokens=[0, 2], prompt=[2, 2], max_new_tokens=2, repetition_penalty=1.3),
        dict(table="v5", num_beams=9, end_tokens=[1, 3], prompt=[3], max_new_tokens=8, early_stopping="never",
             length_penalty=-1.0, no_repeat_ngram_size=1),
        dict(table="v70_flat", num_beams=2, end_tokens=[9], length_penalty=0.6, max_new_tokens=25),
        dict(table="v70_flat", num_beams=16, num_return_sequences=5, end_tokens=[9], max_new_tokens=20),
        dict(table="v70_flat", num_beams=2, end_tokens=[], no_repeat_ngram_size=2, max_new_tokens=25),
        dict(table="v10_ties", num_beams=4, end_tokens=[7, 8], length_penalty=2.0, early_stopping="never"),
        dict(table="v10_ties", num_beams=5, end_tokens=[], max_new_tokens=20),
        dict(table="v8_twins", num_beams=4, end_tokens=[6, 7], max_new_tokens=20, no_repeat_ngram_size=2),
    ]


def random_case(rng, all_tables):
    name = rng.choice(sorted(all_tables))
    vocab = all_tables[name]["vocab"]
    ends = rng.sample(range(vocab), rng.choice([0, 1, 1, 1, 2, min(5, vocab - 1)]))
    maybe = lambda value, other, chance: value if rng.random() < chance else other
    bias = [[t, rng.choice([None, 0.5, -1.5, 3.0])] for t in rng.sample(range(vocab), rng.randint(1, vocab))]
    return make_case(
        all_tables, table=name, prompt=[rng.randrange(vocab) for _ in range(rng.choice([1, 2, 5]))],
        end_tokens=ends,
        num_beams=rng.choice([2, 2, 3, 4, 5, 9]), length_penalty=rng.choice([-1.0, 0.0, 0.6, 1.0, 1.0, 2.0]),
        early_stopping=rng.choice(sorted(EARLY)), no_repeat_ngram_size=maybe(rng.choice([1, 2, 3]), 0, 0.3),
        forced_bos_token=maybe(rng.randrange(vocab), -1, 0.2), forced_eos_token=maybe(rng.randrange(vocab), -1, 0.2),
        max_new_tokens=rng.choice([1, 2, 3, 8, 20]), min_new_tokens=maybe(rng.choice([1, 3, 6]), 0, 0.2),
        repetition_penalty=maybe(rng.choice([1.3, 0.8]), 1.0, 0.2), logit_bias=maybe(bias, [], 0.2))


def dump(value):
    return json.dumps(value, separators=(",", ":"))


def main():
    args = sys.argv[1:]
    count, seed, path = 60, 1, os.path.join(HERE, "beams", "beams.json")
    all_tables = tables()
    chosen = [make_case(all_tables, **values) for values in grid() + rules()]
    if args and args[0] == "--random":
        chosen, count, seed, path = [], int(args[1]), int(args[2]), args[3]
    elif args:
        path = args[0]
    rng = random.Random(seed)
    cases = chosen + [random_case(rng, all_tables) for _ in range(count)]
    models = {name: TableModel(table).eval() for name, table in all_tables.items()}
    lines = []
    for i, case in enumerate(cases):
        results = stable_results(models[case["table"]], case)
        if results is not None:
            lines.append(dump({**case, "results": results}))
        elif i < len(chosen):
            sys.exit("rounding decides " + dump(case))
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    with open(path, "w", encoding="ascii") as file:
        rows = ",\n".join(f"  {dump(name)}: {dump(table)}" for name, table in all_tables.items())
        file.write('{"versions": %s, "unit": %d,\n"tables": {\n%s},\n"cases": [\n%s]}\n'
                   % (json.dumps(versions), UNIT, rows, ",\n".join(lines)))
    print(len(lines), "cases of", len(cases), os.path.getsize(path), "bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
