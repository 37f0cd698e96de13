#!/usr/bin/env bash
# Tokenization to token files compared with Megatron's script, on the same lines and tokenizer, in alternating runs, and
# whether the files are equal. Ours reads INPUT.jsonl, Megatron's its first LINES. Megatron comes from BEV_PEER_PYTHON
# (a python with megatron-core and transformers); without it only our results are printed.
# usage: bench/preprocess.sh TOKENIZER.json INPUT.jsonl [LINES] [ROUNDS]
set -eu
cd "$(dirname "$0")/.."
tokenizer=$1 input=$2 lines=${3:-2000} rounds=${4:-2}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
head -n "$lines" "$input" > "$folder/few.jsonl"

ours() {  # INPUT WORKERS PREFIX
  local begin end
  begin=$(date +%s.%N)
  build/bevatron preprocess --input "$1" --tokenizer "$tokenizer" --workers "$2" --output-prefix "$3" >/dev/null 2>&1
  end=$(date +%s.%N)
  awk -v bytes="$(stat -c %s "$1")" -v seconds="$(awk "BEGIN { print $end - $begin }")" -v workers="$2" 'BEGIN {
    printf "{\"program\": \"bevatron\", \"workers\": %d, \"seconds\": %.2f, \"mb_per_s\": %.1f}\n", workers, seconds,
           bytes / seconds / 1e6 }'
}

for _ in $(seq "$rounds"); do
  for workers in 1 2; do
    ours "$input" "$workers" "$folder/ours"
    [ -z "${BEV_PEER_PYTHON:-}" ] || "$BEV_PEER_PYTHON" bench/peers/preprocess_megatron.py "$tokenizer" \
      "$folder/few.jsonl" "$folder/megatron" "$workers" 2>/dev/null
  done
done
[ -n "${BEV_PEER_PYTHON:-}" ] || exit 0
ours "$folder/few.jsonl" 1 "$folder/few" >/dev/null
for ending in bin idx; do cmp "$folder/few_text_document.$ending" "$folder/megatron.$ending"; done
echo "the files of the first $lines lines are the same"
