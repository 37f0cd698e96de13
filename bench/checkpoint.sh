#!/usr/bin/env bash
# checkpoint.sh [FOLDER]: saves about 1 GB of training state to FOLDER (by default a new one in the current folder),
# synchronously and asynchronously, and after each synchronous save writes the same bytes with dd. Prints a table.
set -euo pipefail
program=$(cd "$(dirname "$0")/.." && pwd)/build/bevatron
folder=${1:-checkpoint-bench}
mkdir -p "$folder"
trap 'rm -rf "$folder"' EXIT

# 85.9M parameters in f32: weights and two moments are 1.03 GB.
train() {
  "$program" train --mock-data --num-layers 12 --hidden-size 768 --num-attention-heads 12 --vocab-size 1000 \
    --seq-length 128 --max-position-embeddings 128 --global-batch-size 1 --lr 0.001 --loss-svg= --log-interval 100 \
    --most-recent-k 1 --save "$folder/saved" "$@" 2>&1
}
# Prints "SECONDS WAITED" of every save.
saves() { sed -nE 's/^saved .* in ([0-9.]+) s; training waited ([0-9.]+) s$/\1 \2/p'; }
middle() { sort -g | awk '{ values[NR] = $1 } END { printf "%s %s %s", values[int((NR + 1) / 2)], values[1], values[NR] }'; }
# Writes the shard itself, from memory, by dd in blocks of 4 MiB with direct I/O: the speed of the disk.
plain_write() {
  local begin end
  cat "$1" >/dev/null
  begin=$(date +%s.%N)
  dd if="$1" of="$folder/plain" bs=4M oflag=direct conv=fsync status=none
  end=$(date +%s.%N)
  rm "$folder/plain"
  awk -v a="$begin" -v b="$end" 'BEGIN { print b - a }'
}

: >"$folder/pairs" >"$folder/async"
for _ in 1 2 3 4 5 6 7 8; do
  saved=$(train --no-async-save --save-interval 2 --train-iters 2 | saves)
  shard=$(ls "$folder"/saved/iter_*/shard_00000.safetensors)
  echo "$saved $(plain_write "$shard")" >>"$folder/pairs"
done
bytes=$(stat -c %s "$shard")
for _ in 1 2 3; do
  # Far enough apart that no save waits for the one before; no training runs during the last one.
  train --save-interval 6 --train-iters 25 | saves | head -n -1 >>"$folder/async"
done

read -r save _ _ <<<"$(cut -d' ' -f1 "$folder/pairs" | middle)"
read -r plain _ _ <<<"$(cut -d' ' -f3 "$folder/pairs" | middle)"
read -r ratio least most <<<"$(awk '{ print 100 * $3 / $1 }' "$folder/pairs" | middle)"
read -r beside _ _ <<<"$(cut -d' ' -f1 "$folder/async" | middle)"
read -r waited _ longest <<<"$(cut -d' ' -f2 "$folder/async" | middle)"
awk -v bytes="$bytes" -v save="$save" -v plain="$plain" -v ratio="$ratio" -v least="$least" -v most="$most" \
  -v beside="$beside" -v waited="$waited" -v longest="$longest" 'BEGIN {
  gigabytes = bytes / 1e9
  printf "state of %.2f GB, medians\n\n", gigabytes
  print "| | seconds | GB/s | training waited, s |"
  print "| --- | --- | --- | --- |"
  printf "| plain write | %.2f | %.2f | |\n", plain, gigabytes / plain
  printf "| save, training waiting | %.2f | %.2f, %.0f%% of plain (%.0f - %.0f) | %.2f |\n", save, gigabytes / save, ratio, least, most, save
  printf "| save beside training | %.2f | %.2f | %.3f, at most %.3f: %.2f%% of a save that it waits for |\n", beside, gigabytes / beside, waited, longest, 100 * waited / save
}'
