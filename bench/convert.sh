#!/usr/bin/env bash
# Converts weights of 1.03 billion parameters in bf16 (2.06 GB) from a Hugging Face folder and from a checkpoint to a
# Hugging Face folder, including the sync to disk, compared with load and save of the same model by transformers
# (excluding its startup, including ours), in alternating runs, as JSON lines. All files are in the page cache when they
# are read. BEV_PEER_PYTHON is a python with transformers.
# usage: bench/convert.sh [ROUNDS] [FOLDER]   (FOLDER: on the disk to measure; needs 10 GB there and 12 GB of memory)
set -eu
cd "$(dirname "$0")/.."
rounds=${1:-5} folder=${2:-build/bench/convert}
peer=bench/peers/convert_transformers.py
mkdir -p "$folder"
[ -e "$folder/model/config.json" ] || "$BEV_PEER_PYTHON" $peer make "$folder/model"
[ -e "$folder/run/latest_checkpointed_iteration.txt" ] ||
  build/bevatron train --hf-model "$folder/model" --mock-data --seq-length 8 --micro-batch-size 1 --train-iters 1 \
    --optimizer sgd --sgd-momentum 0 --lr 1e-6 --bf16 --save "$folder/run" --no-save-optim --loss-svg "$folder/loss.svg" >/dev/null
ours() { # NAME FLAGS...
  local start end
  start=$(date +%s.%N)
  /usr/bin/time -f %M -o "$folder/peak" build/bevatron convert "${@:2}" --export-hf "$folder/ours" 2>/dev/null
  end=$(date +%s.%N)
  awk -v who="$1" -v s="$start" -v e="$end" -v peak="$(cat "$folder/peak")" \
    'BEGIN { printf "{\"who\": \"%s\", \"seconds\": %.2f, \"peak_mb\": %.0f}\n", who, e - s, peak / 1024 }'
}
echo "load $(cut -d' ' -f1 /proc/loadavg)"
for _ in $(seq "$rounds"); do
  rm -rf "$folder/theirs" "$folder/ours"
  "$BEV_PEER_PYTHON" $peer rewrite "$folder/model" "$folder/theirs"
  ours "bevatron, from a folder" --hf-model "$folder/model"
  rm -rf "$folder/ours"
  ours "bevatron, from a checkpoint" --load "$folder/run"
done
