#!/usr/bin/env bash
# Inference on one GPU in one call: the memory ceiling, decode at the contexts of bench/results/h200.md, a load, the
# prefix cache, sampling rules, and the cost of exact kernels, with PyTorch's decode (BEV_PEER_PYTHON, BEV_PEER_DECODE:
# the script) before and after. usage: bench/inference.sh   BEVATRON, BEV_DECODE: the programs (build/bevatron,
# build/bench/decode)
set -euo pipefail
cd "$(dirname "$0")/.."
program=${BEVATRON:-build/bevatron}
decode=${BEV_DECODE:-build/bench/decode}

say() { printf '\n== %s\n' "$*"; }
peer() {
  [[ -n ${BEV_PEER_PYTHON:-} && -n ${BEV_PEER_DECODE:-} ]] || return 0
  say "PyTorch, $1 batch $2"
  "$BEV_PEER_PYTHON" "$BEV_PEER_DECODE" "$1" "$2" 32 128 || true
}
load() { "$program" bench serve --offline --device cuda --bf16 "$@" | tail -1; }

for model in llama3.2-1b llama3-8b; do
  peer "${model/llama3-/llama-3-}" 1
  say "$model: batch 1, prompt 32, 128 new"
  "$decode" "$model" bf16 1 128 cuda kernels=12
  for batch in 64 256; do
    say "$model: batch $batch, prompt 960, 128 new (context 1024)"
    load --preset "$model" --requests "$batch" --input-len 960 --output-len 128 --max-seqs "$batch" --no-prefix-cache
  done
  say "$model: batch 64, exact"
  load --preset "$model" --requests 64 --input-len 960 --output-len 128 --max-seqs 64 --no-prefix-cache --exact
  say "$model: batch 64, all sampling rules"
  load --preset "$model" --requests 64 --input-len 960 --output-len 128 --max-seqs 64 --no-prefix-cache --temperature 0.8 \
    --top-k 40 --top-p 0.9 --min-p 0.02 --repetition-penalty 1.1 --presence-penalty 0.2 --frequency-penalty 0.1
  peer "${model/llama3-/llama-3-}" 64
done
say "llama3-8b: prefill of 8192 tokens"
load --preset llama3-8b --requests 4 --concurrency 1 --input-len 8192 --output-len 1 --no-prefix-cache
say "llama3-8b: prefix of 4096 of 4160 tokens, then the same cold"
load --preset llama3-8b --requests 8 --concurrency 1 --input-len 4160 --output-len 2 --shared-prefix 4096
load --preset llama3-8b --requests 8 --concurrency 1 --input-len 4160 --output-len 2 --no-prefix-cache
say "llama3-8b: 1,000 requests of 1000 in and 1000 out"
load --preset llama3-8b --requests 1000 --input-len 1000 --output-len 1000 --max-seqs 512
