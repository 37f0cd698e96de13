#!/usr/bin/env bash
# Tokenizing speed on one thread and on all, compared with the common libraries on the same text: alternating runs, as
# JSON lines. "gain" is the speedup of all threads over one, "share" that speedup relative to the one of a plain
# arithmetic loop in the same run; "processor_share" is the same by CPU time, which a busy machine affects less. The
# libraries come from BEV_PEER_PYTHON (a python with tokenizers and tiktoken) and BEV_PEER_SCRIPT (tokenize_peers.py).
# MEGABYTES (20) and ROUNDS (3) are read from the environment.
# usage: bench/tokenize.sh DOCS.jsonl TOKENIZER.json...   (e.g. one each of BPE, WordPiece and Unigram)
set -eu
cd "$(dirname "$0")/.."
documents=$1 megabytes=${MEGABYTES:-20} rounds=${ROUNDS:-3}
shift
for tokenizer in "$@"; do
  echo "$tokenizer, load $(cut -d' ' -f1 /proc/loadavg)"
  for _ in $(seq "$rounds"); do
    build/bench/tokenize "$tokenizer" "$documents" "$megabytes" "$(nproc)"
    if [ -n "${BEV_PEER_PYTHON:-}" ]; then
      "$BEV_PEER_PYTHON" "$BEV_PEER_SCRIPT" "$tokenizer" "$documents" "$megabytes"
    fi
  done
done
