#!/usr/bin/env bash
# Decoding speed on the CPU compared with transformers: alternating runs, median and spread of the ratios. transformers
# comes from BEV_PEER_PYTHON (a python with torch and transformers); without it only our results are printed.
# usage: bench/decode.sh [PAIRS] [NEW_TOKENS]
set -eu
cd "$(dirname "$0")/.."
. bench/pairs.sh
pairs=${1:-5} new_tokens=${2:-64}

echo "| model | precision | batch | bevatron tok/s | of a copy's speed | transformers tok/s | ratio (least - most) |"
echo "| --- | --- | --- | --- | --- | --- | --- |"
for case in "gpt2-124m fp32 1" "gpt2-124m fp32 8" "gpt2-124m bf16 1" "gpt2-124m bf16 8"; do
  read -r model mode batch <<<"$case"
  ours=() theirs=() ratios=() shares=()
  for _ in $(seq "$pairs"); do
    line=$(build/bench/decode $case "$new_tokens")
    ours+=("$(field tok_s <<<"$line")")
    shares+=("$(field share <<<"$line")")
    if [ -n "${BEV_PEER_PYTHON:-}" ]; then
      theirs+=("$(peer decode_transformers.py $case "$new_tokens" | field tok_s)")
      ratios+=("$(ratio "${ours[-1]}" "${theirs[-1]}")")
    fi
  done
  echo "| $model | $mode | $batch | $(median "${ours[@]}") | $(median "${shares[@]}") | $(median "${theirs[@]}") | $(spread "${ratios[@]}") |"
done
