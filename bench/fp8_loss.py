#!/usr/bin/env python3
"""Loss of llama3.2-1b in FP8 compared with bf16, on real text: the same steps with each recipe, a table and the curves as SVG.

usage: bench/fp8_loss.py TEXT_FOLDER OUT_FOLDER [ITERATIONS] [RECIPE...]

The folder's files become a BPE tokenizer and token files first; BEVATRON names the program (build/bevatron).
"""
import json
import os
import subprocess
import sys

BEVATRON = os.environ.get("BEVATRON", "build/bevatron")
COLOURS = ["#000000", "#d62728", "#1f77b4", "#2ca02c", "#ff7f0e", "#9467bd"]
LAST = 30  # the mean of so many steps is compared


def bevatron(*arguments):
    subprocess.run([BEVATRON, *arguments], check=True, stdout=subprocess.DEVNULL)


def prepare(text, out):
    tokenizer = f"{out}/tokenizer"
    if not os.path.exists(tokenizer):
        bevatron("tokenizer", "train", "--input", text, "--vocab-size", "32000", "--output", tokenizer)
    if not os.path.exists(f"{out}/tokens_text_document.idx"):
        bevatron("preprocess", "--input", text, "--tokenizer", tokenizer, "--append-eod", "--output-prefix", f"{out}/tokens",
                 "--input-format", "text")
    return f"{out}/tokens_text_document"


def train(name, tokens, out, iterations):
    """Losses of all steps. A name is bf16 or a recipe, with +seed=N for other weights and another order of the data."""
    recipe, *options = name.split("+")
    metrics = f"{out}/{name}.jsonl"
    if not os.path.exists(metrics):
        flags = [] if recipe == "bf16" else ["--fp8-format", "hybrid", "--fp8-recipe", recipe]
        for option in options:
            flags += ["--" + option.split("=")[0], *option.split("=")[1:]]
        bevatron("train", "--preset", "llama3.2-1b", "--data-path", tokens, "--split", "100,0,0", "--device", "cuda", "--bf16",
                 "--seq-length", "4096", "--micro-batch-size", "4", "--train-iters", str(iterations), "--lr", "1e-4",
                 "--min-lr", "1e-5", "--lr-decay-style", "cosine", "--lr-warmup-iters", str(iterations // 5), "--adam-beta2", "0.95",
                 "--metrics-out", metrics, "--loss-svg", "", *flags)
    with open(metrics) as lines:
        return [record["loss"] for record in map(json.loads, lines) if "loss" in record]


def smooth(losses, window=10):
    return [sum(losses[max(0, i - window + 1):i + 1]) / (i + 1 - max(0, i - window + 1)) for i in range(len(losses))]


def svg(curves):
    width, height, left, right, top, bottom = 760, 420, 50, 20, 20, 40
    shown = {name: smooth(losses) for name, losses in curves.items()}
    count = max(map(len, shown.values()))
    least = min(min(losses) for losses in shown.values())
    most = max(losses[0] for losses in shown.values())
    x = lambda i: left + i * (width - left - right) / max(1, count - 1)
    y = lambda v: top + (most - v) / (most - least) * (height - top - bottom)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">'
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for v in range(int(least) + 1, int(most) + 1):
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/>'
                     f'<text x="{left - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v}</text>')
    for i in range(0, count + 1, 50):
        parts.append(f'<text x="{x(i):.1f}" y="{height - 16}" text-anchor="middle">{i}</text>')
    for k, (name, losses) in enumerate(shown.items()):
        points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(losses))
        colour = COLOURS[k % len(COLOURS)]
        parts.append(f'<polyline fill="none" stroke="{colour}" points="{points}"/>'
                     f'<text x="{width - 230}" y="{40 + 18 * k}" fill="{colour}">{name}, last {LAST}: {mean(curves[name]):.4f}</text>')
    return "\n".join(parts + ["</svg>\n"])


def mean(losses):
    return sum(losses[-LAST:]) / len(losses[-LAST:])


def main():
    text, out = sys.argv[1:3]
    iterations = int(sys.argv[3]) if len(sys.argv) > 3 else 300
    names = ["bf16", *(sys.argv[4:] or ["tensorwise", "blockwise"])]
    os.makedirs(out, exist_ok=True)
    tokens = prepare(text, out)
    curves = {}
    print(f"| | loss, mean of the last {LAST} of {iterations} steps | against bf16 |\n| --- | --- | --- |")
    for name in names:
        curves[name] = train(name, tokens, out, iterations)
        print(f"| {name} | {mean(curves[name]):.4f} | {mean(curves[name]) / mean(curves['bf16']) - 1:+.2%} |", flush=True)
    with open(f"{out}/fp8_loss.svg", "w") as file:
        file.write(svg(curves))


if __name__ == "__main__":
    main()
