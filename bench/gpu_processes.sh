#!/usr/bin/env bash
# Ranks in several processes on GPUs, over NCCL: the losses of every layout must be one rank's. A check, with the time
# of each run. Processes may share a GPU with NCCL 2.30 or newer (its folder in LD_LIBRARY_PATH).
# usage: bench/gpu_processes.sh [ITERATIONS]   BEVATRON: the program (build/bevatron)
set -euo pipefail
cd "$(dirname "$0")/.."
iterations=${1:-5}
program=${BEVATRON:-build/bevatron}
export NCCL_MULTI_RANK_GPU_ENABLE=1 MASTER_ADDR=localhost MASTER_PORT=29577
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
train=("$program" train --device cuda --family llama --num-layers 4 --hidden-size 256 --num-attention-heads 8
       --num-query-groups 4 --ffn-hidden-size 704 --position-embedding-type rope --normalization RMSNorm --swiglu
       --disable-bias-linear --seq-length 128 --micro-batch-size 1 --global-batch-size 8 --mock-data --vocab-size 1001
       --lr 1e-3 --train-iters "$iterations" --loss-svg '')
zero3="--data-parallel-sharding-strategy optim_grads_params --overlap-grad-reduce --overlap-param-gather"
zero1="--data-parallel-sharding-strategy optim --overlap-grad-reduce --overlap-param-gather"
# processes: flags
layouts=(
  "2: --dp 2 --overlap-grad-reduce"
  "2: --tp 2 --sequence-parallel"
  "2: --tp 2 --sequence-parallel --tp-comm-overlap"
  "2: --pp 2"
  "2: --cp 2"
  "4: --dp 4 $zero3"
  "4: --dp 4 $zero1 --deterministic-mode"
  "4: --pp 2 --vpp 2 --tp 2"
)
losses() { sed 's/.*"loss": *\([0-9.e+-]*\).*/\1/' "$1"; }

# Runs the processes of a layout; logs in $folder/log.RANK.
start() {
  local processes=$1 rank pid rc=0 pids=()
  shift
  for rank in $(seq 0 $((processes - 1))); do
    RANK=$rank WORLD_SIZE=$processes timeout -s KILL 60 "${train[@]}" "$@" --metrics-out "$folder/many" \
      >"$folder/log.$rank" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || rc=$?; done
  return $rc
}

"${train[@]}" --metrics-out "$folder/one" >"$folder/log" 2>&1 || { tail -n 5 "$folder/log" >&2; exit 1; }
echo "one rank: $(losses "$folder/one" | xargs)"
failed=0
for layout in "${layouts[@]}"; do
  processes=${layout%%:*} flags=${layout#*: } begin=$SECONDS
  # shellcheck disable=SC2086
  if start "$processes" $flags && paste <(losses "$folder/one") <(losses "$folder/many") |
      awk '{ d = $1 - $2; if (d < 0) d = -d; bad += d > 2e-4 * $1 } END { exit !(NR > 0 && bad == 0) }'; then
    echo "same: $processes processes, $flags ($((SECONDS - begin)) s)"
  else
    echo "OTHER: $processes processes, $flags: $(tail -qn 2 "$folder"/log.*)"
    failed=1
  fi
  rm -f "$folder/many" "$folder"/log.*
done
# A rank that stops and a process that dies must end the run, with a report that names the rank.
for kind in stall kill; do
  begin=$SECONDS
  if start 2 --dp 2 --distributed-timeout-minutes 0.1 --inject-fault "rank=1,call=20,kind=$kind"; then
    echo "NOT NOTICED: $kind" && failed=1
  fi
  echo "$kind ($((SECONDS - begin)) s): $(grep -hE 'never came|ended before' "$folder"/log.0 | head -n 1 | cut -c 1-160)"
done
exit $failed
