#!/usr/bin/env bash
# Training steps on one GPU compared with PyTorch (bench/peers/gpu_torch_step.py), with the same number of steps, since
# a GPU at its power limit slows down after a second: tokens/s of the median iteration of the second half, and TFLOP/s,
# counted in the same way (for MoE only the selected experts).
# usage: bench/gpu.sh [ITERATIONS] [MODEL...]   models: llama3-8b llama3-8b-acc4 llama3.2-1b qwen2.5-0.5b gpt124m;
# qwen3-30b-a3b-N: its first N layers (20 fit), with all experts under the same load on both sides;
# MODEL+RECIPE in FP8 (hybrid), e.g. bench/gpu.sh 20 llama3-8b{,+tensorwise,+blockwise,+delayed} llama3.2-1b+tensorwise
# BEVATRON: the program (build/bevatron); BEV_PEER_PYTHON: a python that has torch (none: only our results);
# BEV_STATE=fp32 keeps master weights, gradients and moments in fp32.
set -euo pipefail
cd "$(dirname "$0")/.."
iterations=${1:-20}
shift || true
models=("$@")
((${#models[@]})) || models=(gpt124m qwen2.5-0.5b llama3.2-1b{,+tensorwise,+blockwise} llama3-8b{,+tensorwise,+blockwise} llama3-8b-acc4
                             qwen3-30b-a3b-20)
program=${BEVATRON:-build/bevatron}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

state=()
if [[ ${BEV_STATE:-bf16} == bf16 ]]; then
  state=(--main-params-dtype bf16 --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16)
fi

# name: our flags; model, batch, tokens, accumulation of the peer
settings() {
  precision=(--bf16)
  [[ $1 == *+* ]] && precision+=(--fp8-format hybrid --fp8-recipe "${1#*+}")
  case ${1%+*} in
    gpt124m) ours=(--family llama --num-layers 12 --hidden-size 768 --ffn-hidden-size 2048 --num-attention-heads 12
                   --num-query-groups 12 --vocab-size 50304 --max-position-embeddings 2048 --normalization RMSNorm
                   --swiglu --disable-bias-linear --use-rotary-position-embeddings)
             peer=gpt124m batch=32 tokens=1024 accumulate=1 ;;
    qwen2.5-0.5b) ours=(--preset qwen2.5-0.5b) peer=qwen2.5-0.5b batch=32 tokens=1024 accumulate=1 ;;
    llama3.2-1b) ours=(--preset llama3.2-1b) peer=llama-3.2-1b batch=4 tokens=4096 accumulate=1 ;;
    llama3-8b) ours=(--preset llama3-8b) peer=llama-3-8b batch=1 tokens=8192 accumulate=1 ;;
    llama3-8b-acc4) ours=(--preset llama3-8b) peer=llama-3-8b batch=1 tokens=8192 accumulate=4 ;;
    qwen3-30b-a3b-*) peer=${1%+*} batch=4 tokens=4096 accumulate=1
                     ours=(--preset qwen3-30b-a3b --num-layers "${peer##*-}" --moe-router-force-load-balancing) ;;
    *) echo "bench/gpu.sh: no model $1" >&2; exit 2 ;;
  esac
}

# Median of the numbers on stdin.
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

# Value in a log line that has KEY: NUMBER
number() { sed -E "s|.*$1:? *([0-9.e+]+).*|\\1|"; }

printf '| model | batch | ours, tok/s | TFLOP/s | PyTorch, tok/s | TFLOP/s | ratio |\n| --- | --- | --- | --- | --- | --- | --- |\n'
for model in "${models[@]}"; do
  settings "$model"
  "$program" train "${ours[@]}" "${state[@]}" "${precision[@]}" --device cuda --mock-data --seq-length "$tokens" \
    --micro-batch-size "$batch" --global-batch-size $((batch * accumulate)) --train-iters "$iterations" \
    --clip-grad 1 --lr 1e-4 --log-interval 1 --log-throughput --metrics-out "$work/metrics.jsonl" --loss-svg "" \
    >"$work/log" 2>&1 || { tail -n 5 "$work/log" >&2; exit 1; }
  mine=$(tail -n $((iterations / 2)) "$work/metrics.jsonl" | number '"tokens_per_second"' | median)
  rate=$(grep -F 'TFLOP/s/GPU' "$work/log" | tail -n $((iterations / 2)) | number 'TFLOP/s/GPU\)' | median)
  theirs=0 their_rate=0
  if [[ -n ${BEV_PEER_PYTHON:-} ]]; then
    line=$("$BEV_PEER_PYTHON" bench/peers/gpu_torch_step.py "$peer" "$batch" "$tokens" "$accumulate" "$iterations")
    theirs=$(number '"tok_s"' <<<"$line") their_rate=$(number '"tflops"' <<<"$line")
  fi
  awk -v m="$model" -v b="$((batch * accumulate)) x $tokens" -v o="$mine" -v f="$rate" -v t="$theirs" -v g="$their_rate" \
    'BEGIN { printf "| %s | %s | %.0f | %.0f | %.0f | %.0f | %s |\n", m, b, o, f, t, g, (t > 0 ? sprintf("%.3f", o / t) : "-") }'
done
