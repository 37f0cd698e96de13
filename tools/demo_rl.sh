#!/usr/bin/env bash
# Reinforcement learning from the beginning, in minutes on two cores: a small model reads sums, most of them wrong, and is rewarded for
# the right ones until nearly all that it writes are right. SEED chooses the run.
set -eu
cd "$(dirname "$0")/.."
program=${BEVATRON:-build/bevatron}
folder=${1:-demo/rl}
seed=${SEED:-1}
mkdir -p "$folder"
step() { printf '\n== %s\n' "$1" >&2; }

step "1. Lines such as 3+4=7, most of them off by up to 3, and prompts with the right answers"
awk -v seed="$seed" -v text="$folder/sums.txt" -v prompts="$folder/prompts.jsonl" 'BEGIN {
  srand(seed)
  for (i = 0; i < 60000; ++i) {
    a = int(10 * rand()); b = int(10 * rand()); c = a + b
    if (rand() < 0.85) { c += int(7 * rand()) - 3; if (c < 0) c = 0 }
    printf "%d+%d=%d\n", a, b, c > text
  }
  for (a = 0; a < 10; ++a) for (b = 0; b < 10; ++b) printf "{\"prompt\": \"%d+%d=\", \"answer\": %d}\n", a, b, a + b > prompts
}'

step "2. A model learns to write such lines"
"$program" train --config configs/demo_rl.yaml --text "$folder/sums.txt" --data-cache-path "$folder/cache" --seed "$seed" \
  --seq-length 96 --micro-batch-size 16 --train-iters 1500 --lr 3e-3 --min-lr 3e-4 --lr-decay-style cosine --lr-warmup-iters 20 \
  --split 1,0,0 --log-interval 100 --loss-svg "$folder/loss.svg" --export-hf "$folder/before"

step "3. Reinforcement: sums are sampled, rewarded if they are right, and reinforced"
"$program" rl --hf-model "$folder/before" --data "$folder/prompts.jsonl" --reward numeric --stop '\n' \
  --max-completion-length 4 --prompts-per-step 64 --num-generations 16 --micro-batch-size 256 \
  --train-iters 200 --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --adam-beta2 0.95 --weight-decay 0 --seed "$seed" --log-interval 20 \
  --metrics-out "$folder/metrics.jsonl" --report-html "$folder/rl.html" --loss-svg '' --export-hf "$folder/after"

step "4. The reward of each step"
"$program" plot "$folder/metrics.jsonl" --metric reward --output "$folder/reward.svg"

step "5. Samples before and after"
for prompt in 2+3= 7+8= 9+9=; do
  for model in before after; do
    printf '%-7s ' "$model"
    "$program" generate --hf-model "$folder/$model" --prompt "$prompt" --max-new-tokens 2 --temperature 1 --seed 5 2>/dev/null |
      head -1 | sed "s/^/$prompt/"
  done
done
echo "-----------------------------"
echo "$folder/ holds rl.html, reward.svg, metrics.jsonl, and the models before/ and after/."
