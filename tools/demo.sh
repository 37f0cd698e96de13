#!/usr/bin/env bash
# From text to a model that writes it: trains a tokenizer and a small model on text that every Debian machine with a
# compiler has, shows its loss and a sample.
set -eu
cd "$(dirname "$0")/.."

text=()
for path in /usr/share/common-licenses /usr/include/c++/12/bits; do
  [ -d "$path" ] && text+=("$path")
done
[ ${#text[@]} -gt 0 ] || { echo "demo: no text found on this machine" >&2; exit 1; }

step() { printf '\n== %s\n' "$1" >&2; }
mkdir -p demo

step "1. A tokenizer of 2048 tokens, learned from ${text[*]}"
build/bevatron tokenizer train --input "${text[@]}" --vocab-size 2048 --output demo/tokenizer

step "2. The text as token files"
build/bevatron preprocess --input "${text[@]}" --input-format text --txt-piece-bytes 16384 \
  --tokenizer demo/tokenizer --append-eod --output-prefix demo/corpus

step "3. A small Llama trains on them, three minutes at most"
build/bevatron train --config configs/demo.yaml --data-path demo/corpus_text_document --tokenizer demo/tokenizer \
  --export-hf demo/model --metrics-out demo/metrics.jsonl --tensorboard-dir demo/tensorboard --loss-svg demo/loss.svg

step "4. A sample of the trained model"
prompt=$'  /**\n   *  @brief'
printf '%s' "$prompt"
build/bevatron generate --hf-model demo/model --prompt "$prompt" \
  --max-new-tokens 100 --temperature 0.5 --top-p 0.95 --seed 7
echo
echo "-----------------------------"
echo "demo/ holds the tokenizer, the token files, loss.svg, metrics.jsonl, tensorboard/ and the exported model/."
