#!/usr/bin/env bash
# Trains a small model on text that every Debian machine with a compiler has, shows its loss and a sample.
set -eu
cd "$(dirname "$0")/.."

text=()
for path in /usr/share/common-licenses /usr/include/c++/12/bits; do
  [ -d "$path" ] && text+=("$path")
done
[ ${#text[@]} -gt 0 ] || { echo "demo: no text found on this machine" >&2; exit 1; }

mkdir -p demo
echo "Training on ${text[*]} (a few minutes) ..." >&2
build/bevatron train --config configs/demo.yaml --text "${text[@]}" \
  --export-hf demo/model --metrics-out demo/metrics.jsonl \
  --tensorboard-dir demo/tensorboard --loss-svg demo/loss.svg
echo
echo "A sample of the trained model:"
echo "-----------------------------"
build/bevatron generate --hf-model demo/model --prompt "  /** @brief " \
  --max-new-tokens 240 --temperature 0.5 --top-p 0.95 --seed 7
echo
echo "-----------------------------"
echo "demo/ holds loss.svg, metrics.jsonl, tensorboard/ and the exported model/."
