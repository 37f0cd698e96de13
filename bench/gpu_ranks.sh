#!/usr/bin/env bash
# Thread ranks that share one GPU: tokens/s of the whole GPU compared with one rank, for the same global batch of a
# model with a billion parameters. The median iteration of the second half; losses must agree. The fraction of
# overlapped communication is that of iterations 3 and 4, which are traced.
# usage: bench/gpu_ranks.sh [ITERATIONS] [LAYOUT...]   layouts: one dp2 dp2zero3 tp2 tp2sp pp2 cp2
# BEVATRON: the program (build/bevatron)
set -euo pipefail
cd "$(dirname "$0")/.."
iterations=${1:-12}
shift || true
layouts=("$@")
((${#layouts[@]})) || layouts=(one dp2 dp2zero3 tp2 tp2sp pp2 cp2)
program=${BEVATRON:-build/bevatron}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
state=(--main-params-dtype bf16 --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16)
overlap=(--overlap-grad-reduce --overlap-param-gather)

settings() {
  case $1 in
    one) flags=() ;;
    dp2) flags=(--dp 2 --overlap-grad-reduce) ;;
    dp2zero3) flags=(--dp 2 --data-parallel-sharding-strategy optim_grads_params "${overlap[@]}") ;;
    tp2) flags=(--tp 2) ;;
    tp2sp) flags=(--tp 2 --sequence-parallel) ;;
    pp2) flags=(--pp 2) ;;
    cp2) flags=(--cp 2) ;;
    *) echo "bench/gpu_ranks.sh: no layout $1" >&2; exit 2 ;;
  esac
}
column() { sed -E "s/.*\"$1\": ?([0-9.e+-]+).*/\1/" "$work/metrics.jsonl"; }
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

printf '| ranks | tokens/s of the card | of one rank | communication hidden | last loss |\n| --- | --- | --- | --- | --- |\n'
one=0
for layout in "${layouts[@]}"; do
  settings "$layout"
  "$program" train --preset llama3.2-1b "${state[@]}" --device cuda --bf16 --mock-data --seq-length 4096 \
    --micro-batch-size 1 --global-batch-size 8 --train-iters "$iterations" --clip-grad 1 --lr 1e-4 \
    --metrics-out "$work/metrics.jsonl" --loss-svg "" --profile-trace "$work/trace.json" --profile-step-start 3 \
    --profile-step-end 4 "${flags[@]}" >"$work/log" 2>&1 ||
    { tail -n 5 "$work/log" >&2; exit 1; }
  speed=$(column tokens_per_second | tail -n $((iterations / 2)) | median)
  [[ $layout == one ]] && one=$speed
  hidden=$(sed -nE 's/^communication .* ms, ([0-9.]+%) of it behind computation$/\1/p' "$work/log" | head -n 1)
  awk -v l="$layout" -v s="$speed" -v o="$one" -v h="${hidden:--}" -v x="$(column loss | tail -n 1)" \
    'BEGIN { printf "| %s | %.0f | %s | %s | %s |\n", l, s, (o > 0 ? sprintf("%.3f", s / o) : "-"), h, x }'
  rm -f "$work/metrics.jsonl"
done
