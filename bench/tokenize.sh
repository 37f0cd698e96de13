#!/usr/bin/env bash
# Tokenizing speed beside the usual libraries on the same text: alternating runs, MB/s. The libraries come from
# BEV_PEER_PYTHON (a python with tokenizers and tiktoken) and BEV_PEER_SCRIPT (tokenize_peers.py).
# usage: bench/tokenize.sh TOKENIZER.json DOCS.jsonl [MEGABYTES] [ROUNDS]
set -eu
cd "$(dirname "$0")/.."
tokenizer=$1 documents=$2 megabytes=${3:-20} rounds=${4:-3}
for _ in $(seq "$rounds"); do
  build/bench/tokenize "$tokenizer" "$documents" "$megabytes" 1
  if [ -n "${BEV_PEER_PYTHON:-}" ]; then
    "$BEV_PEER_PYTHON" "$BEV_PEER_SCRIPT" "$tokenizer" "$documents" "$megabytes"
  fi
  build/bench/tokenize "$tokenizer" "$documents" "$megabytes" "$(nproc)"
done
