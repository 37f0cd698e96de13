#!/usr/bin/env bash
# Training steps on one GPU beside PyTorch's: tokens/s of the median iteration of the second half.
# usage: bench/gpu.sh [ITERATIONS] [MODEL...]   models: llama3-8b llama3-8b-acc4 llama3.2-1b qwen2.5-0.5b gpt124m;
# MODEL+RECIPE in FP8 (hybrid), e.g. bench/gpu.sh 20 llama3-8b{,+tensorwise,+blockwise,+delayed} llama3.2-1b+tensorwise
# BEVATRON: the program (build/bevatron); BEV_PEER_PYTHON and BEV_PEER_SCRIPT: PyTorch's step (none: only ours);
# BEV_STATE=fp32 keeps main weights, gradients and moments in fp32.
set -euo pipefail
cd "$(dirname "$0")/.."
iterations=${1:-20}
shift || true
models=("$@")
((${#models[@]})) || models=(gpt124m qwen2.5-0.5b llama3.2-1b{,+tensorwise,+blockwise} llama3-8b{,+tensorwise,+blockwise} llama3-8b-acc4)
program=${BEVATRON:-build/bevatron}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

state=()
if [[ ${BEV_STATE:-bf16} == bf16 ]]; then
  state=(--main-params-dtype bf16 --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16)
fi

# name: our flags; peer's model, batch, tokens, accumulation
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
    *) echo "bench/gpu.sh: no model $1" >&2; exit 2 ;;
  esac
}

# Middle of the numbers on stdin.
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

printf '| model | batch | ours, tok/s | PyTorch, tok/s | ratio |\n| --- | --- | --- | --- | --- |\n'
for model in "${models[@]}"; do
  settings "$model"
  "$program" train "${ours[@]}" "${state[@]}" "${precision[@]}" --device cuda --mock-data --seq-length "$tokens" \
    --micro-batch-size "$batch" --global-batch-size $((batch * accumulate)) --train-iters "$iterations" \
    --clip-grad 1 --lr 1e-4 --log-interval 1 --metrics-out "$work/metrics.jsonl" --loss-svg "" \
    >"$work/log" 2>&1 || { tail -n 5 "$work/log" >&2; exit 1; }
  mine=$(sed -E 's/.*"tokens_per_second": ?([0-9.e+]+).*/\1/' "$work/metrics.jsonl" | tail -n $((iterations / 2)) | median)
  theirs=0
  if [[ -n ${BEV_PEER_SCRIPT:-} ]]; then
    theirs=$("${BEV_PEER_PYTHON:-python3}" "$BEV_PEER_SCRIPT" "$peer" "$batch" "$tokens" "$accumulate" |
      sed -E 's/.*"tok_s": ?([0-9.]+).*/\1/')
  fi
  awk -v m="$model" -v b="$((batch * accumulate)) x $tokens" -v o="$mine" -v t="$theirs" \
    'BEGIN { printf "| %s | %s | %.0f | %.0f | %s |\n", m, b, o, t, (t > 0 ? sprintf("%.3f", o / t) : "-") }'
done
