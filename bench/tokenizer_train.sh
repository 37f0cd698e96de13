#!/usr/bin/env bash
# Training of byte-level BPE compared with Hugging Face's trainer on the same documents: seconds, and whether the merges
# are equal. BEV_PEER_PYTHON is a python with tokenizers.
# usage: bench/tokenizer_train.sh DOCS.jsonl [VOCAB_SIZE]
set -eu
cd "$(dirname "$0")/.."
documents=$1 size=${2:-32000} out=$(mktemp -d)
trap 'rm -r "$out"' EXIT
TIMEFORMAT='{"name": "bevatron", "seconds": %R, "processor_seconds": %U}'
time build/bevatron tokenizer train --input "$documents" --vocab-size "$size" --output "$out"
[ -n "${BEV_PEER_PYTHON:-}" ] || exit 0
"$BEV_PEER_PYTHON" bench/peers/tokenizer_train.py "$documents" "$size" "$out/peer.json"
"$BEV_PEER_PYTHON" - "$out/tokenizer.json" "$out/peer.json" <<'PYTHON'
import json, sys
ours, theirs = (json.load(open(path))["model"] for path in sys.argv[1:])
print("the merges are", "the same" if ours["merges"] == theirs["merges"] and ours["vocab"] == theirs["vocab"] else "NOT the same")
PYTHON
