#!/usr/bin/env bash
# Training speed on the CPU beside PyTorch: alternating runs, median and spread of the ratios. PyTorch comes from
# BEV_PEER_PYTHON (a python with torch); without it only our figures are printed.
# usage: bench/cpu.sh [PAIRS] [SECONDS]
set -eu
cd "$(dirname "$0")/.."
pairs=${1:-5} seconds=${2:-8}
jemalloc=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2
peer() { LD_PRELOAD=$([ -f $jemalloc ] && echo $jemalloc || true) "$BEV_PEER_PYTHON" bench/peers/cpu_torch_step.py "$@"; }
field() { sed "s/.*\"$1\": \([0-9.]*\).*/\1/"; }
median() { sort -n | awk '{ v[NR] = $1 } END { printf "%s %s %s", v[int((NR + 1) / 2)], v[1], v[NR] }'; }

echo "| model | precision | batch | bevatron tok/s | PyTorch tok/s | ratio (least - most) |"
echo "| --- | --- | --- | --- | --- | --- |"
for case in "gpt2-124m fp32 1 1024" "gpt2-124m fp32 4 64" "tiny-llama fp32 8 256" "gpt2-124m bf16 1 1024" "tiny-llama bf16 8 256"; do
  read -r model mode rows length <<<"$case"
  ours=() theirs=() ratios=()
  for _ in $(seq "$pairs"); do
    a=$(build/bench/step $case "$seconds" | field tok_s)
    ours+=("$a")
    if [ -n "${BEV_PEER_PYTHON:-}" ]; then
      b=$(peer $case "$seconds" | field tok_s)
      theirs+=("$b")
      ratios+=("$(awk "BEGIN { printf \"%.3f\", $a / $b }")")
    fi
  done
  read -r mid _ _ <<<"$(printf '%s\n' "${ours[@]}" | median)"
  if [ ${#theirs[@]} -gt 0 ]; then
    read -r peer_mid _ _ <<<"$(printf '%s\n' "${theirs[@]}" | median)"
    read -r ratio least most <<<"$(printf '%s\n' "${ratios[@]}" | median)"
    echo "| $model | $mode | $rows x $length | $mid | $peer_mid | $ratio ($least - $most) |"
  else
    echo "| $model | $mode | $rows x $length | $mid | - | - |"
  fi
done
