#!/usr/bin/env bash
# Training speed on the CPU compared with PyTorch: alternating runs, median and spread of the ratios. PyTorch comes from
# BEV_PEER_PYTHON (a python with torch); without it only our results are printed.
# usage: bench/cpu.sh [PAIRS] [SECONDS] [CASE...]   a case: "gpt2-124m fp32 1 1024", and the peer's precision where it is another
set -eu
cd "$(dirname "$0")/.."
. bench/pairs.sh
pairs=${1:-5} seconds=${2:-8}
cases=("${@:3}")
[ ${#cases[@]} -gt 0 ] || cases=("gpt2-124m fp32 1 1024" "gpt2-124m fp32 4 64" "tiny-llama fp32 8 256" "gpt2-124m bf16 1 1024"
  "tiny-llama bf16 8 256")

echo "| model | precision | batch | bevatron tok/s | PyTorch tok/s | ratio (least - most) | peak MiB | PyTorch's |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- |"
for case in "${cases[@]}"; do
  read -r model mode rows length their_mode <<<"$case"
  ours=() theirs=() ratios=() memory=() their_memory=()
  for _ in $(seq "$pairs"); do
    line=$(build/bench/step "$model" "$mode" "$rows" "$length" "$seconds")
    ours+=("$(field tok_s <<<"$line")")
    memory+=("$(field rss_mib <<<"$line")")
    if [ -n "${BEV_PEER_PYTHON:-}" ]; then
      line=$(peer cpu_torch_step.py "$model" "${their_mode:-$mode}" "$rows" "$length" "$seconds")
      theirs+=("$(field tok_s <<<"$line")")
      their_memory+=("$(field rss_mib <<<"$line")")
      ratios+=("$(ratio "${ours[-1]}" "${theirs[-1]}")")
    fi
  done
  echo "| $model | $mode | $rows x $length | $(median "${ours[@]}") | $(median "${theirs[@]}") | $(spread "${ratios[@]}") |" \
    "$(median "${memory[@]}") | $(median "${their_memory[@]}") |"
done
