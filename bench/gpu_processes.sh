#!/usr/bin/env bash
# Ranks in several processes on GPUs, over NCCL. The losses of every layout must be those of one rank; CUDA graph
# replays must be bitwise equal to launching every kernel; a rank that stops or dies must be reported. This is a check,
# with the time of each run. Processes may share a GPU with NCCL 2.30 or newer (its folder in LD_LIBRARY_PATH).
# usage: bench/gpu_processes.sh [ITERATIONS]   BEVATRON: the program (build/bevatron)
set -euo pipefail
cd "$(dirname "$0")/.."
iterations=${1:-6}
program=${BEVATRON:-build/bevatron}
export NCCL_MULTI_RANK_GPU_ENABLE=1 MASTER_ADDR=localhost
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
train=("$program" train --device cuda --family llama --num-layers 4 --hidden-size 256 --num-attention-heads 8
       --num-query-groups 4 --ffn-hidden-size 704 --position-embedding-type rope --normalization RMSNorm --swiglu
       --disable-bias-linear --seq-length 128 --micro-batch-size 1 --mock-data --vocab-size 1001
       --lr 1e-3 --loss-svg "" --log-interval 1 --deterministic-mode)
experts="--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 352"
zero1="--data-parallel-sharding-strategy optim --overlap-grad-reduce --overlap-param-gather"
zero2="--data-parallel-sharding-strategy optim_grads --overlap-grad-reduce --overlap-param-gather"
zero3="--data-parallel-sharding-strategy optim_grads_params --overlap-grad-reduce --overlap-param-gather"
# processes | expected: recorded (CUDA graphs), unrecorded, redone (recorded, and some steps are repeated) | flags that
# also apply to one rank | layout
layouts=(
  "2|recorded||--dp 2 --overlap-grad-reduce"
  "2|recorded|--global-batch-size 2|--dp 2 --overlap-grad-reduce"
  "2|recorded|--bf16|--dp 2 $zero1"
  "2|recorded||--dp 2 $zero2 --eval-interval 4 --eval-iters 1"
  "2|recorded||--dp 2 $zero3"
  "2|recorded||--tp 2 --sequence-parallel"
  "2|recorded||--tp 2 --sequence-parallel --tp-comm-overlap"
  "2|recorded||--cp 2"
  "2|recorded|$experts|--dp 2 --ep 2 --moe-expert-rank-capacity-factor 2"
  "2|redone|$experts|--dp 2 --ep 2 --moe-expert-rank-capacity-factor 1.6"
  "2|unrecorded|$experts|--dp 2 --ep 2"
  "2|unrecorded||--pp 2"
  "4|recorded||--dp 4 $zero1"
  "4|recorded||--dp 2 --tp 2 $zero3"
  "4|unrecorded||--pp 2 --vpp 2 --tp 2"
)
batch_of() { [[ $1 == *--global-batch-size* ]] || echo --global-batch-size 8; }
losses() { sed 's/.*"loss": *\([0-9.e+-]*\).*/\1/' "$1"; }
failed=0
complain() { echo "WRONG: $*"; failed=1; }

# start NAME PORT PROCESSES FLAGS...: runs the processes of a layout; logs in $folder/NAME.RANK, losses in $folder/NAME.
start() {
  local name=$1 port=$2 processes=$3 rank pid rc=0 pids=()
  shift 3
  for rank in $(seq 0 $((processes - 1))); do
    MASTER_PORT=$port RANK=$rank WORLD_SIZE=$processes timeout -s KILL 60 "${train[@]}" "$@" \
      --metrics-out "$folder/$name" >"$folder/$name.$rank" 2>&1 &
    pids+=($!)
  done
  printf '%s\n' "${pids[@]}" >"$folder/pids.$name"
  for pid in "${pids[@]}"; do wait "$pid" || rc=$?; done
  return $rc
}

# Losses of one rank, for the flags of the model; prints the name of their file.
one_rank() {
  local name
  name=one.$(cksum <<<"$*" | cut -d ' ' -f 1)
  if [[ ! -s $folder/$name ]]; then
    "${train[@]}" "$@" --train-iters "$iterations" --metrics-out "$folder/$name" >"$folder/$name.log" 2>&1 ||
      { tail -n 5 "$folder/$name.log" >&2; exit 1; }
    echo "one rank $*: $(losses "$folder/$name" | xargs)" >&2
  fi
  echo "$name"
}

# With and without CUDA graphs, for comparison.
check_layout() {
  local processes=$1 expected=$2 begin=$SECONDS each=0 reference both
  local -a model flags
  read -ra model <<<"$(batch_of "$3") $3"
  read -ra flags <<<"${model[*]} $4"
  reference=$(one_rank "${model[@]}")
  start each 29577 "$processes" "${flags[@]}" --train-iters "$iterations" --cuda-graph-impl none & each=$!
  start recorded 29677 "$processes" "${flags[@]}" --train-iters "$iterations" || complain "$4: $(tail -qn 2 "$folder"/recorded.*)"
  wait $each || complain "$4: $(tail -qn 2 "$folder"/each.*)"
  both="$4 ($processes processes, $((SECONDS - begin)) s)"
  paste <(losses "$folder/$reference") <(losses "$folder/recorded") |
    awk -v most="$([[ $3 == *--bf16* ]] && echo 2e-3 || echo 2e-4)" \
      '{ d = $1 - $2; if (d < 0) d = -d; bad += d > most * $1 } END { exit !(NR > 0 && bad == 0) }' ||
    complain "$both: not one rank's losses: $(losses "$folder/recorded" | xargs)"
  cmp -s <(losses "$folder/each") <(losses "$folder/recorded") ||
    complain "$both: recording changes losses: $(losses "$folder/each" | xargs), $(losses "$folder/recorded" | xargs)"
  if [[ $expected == unrecorded ]]; then
    grep -q 'are not recorded as graphs' "$folder/recorded.0" || complain "$both: recorded, or no word of it"
  else
    grep -q 'are recorded as graphs' "$folder/recorded.0" || complain "$both: not recorded"
  fi
  [[ $expected != redone ]] || grep -q '"redone":true' "$folder/recorded" || complain "$both: no step was redone"
  echo "$expected: $both"
  rm -f "$folder"/each* "$folder"/recorded*
}

for layout in "${layouts[@]}"; do
  IFS='|' read -ra parts <<<"$layout"
  check_layout "${parts[@]}"
done

# The report of rank 0 about rank 1 must end the run and name it.
expect_report() {
  local report
  report=$(grep -hE 'never came|ended before' "$folder"/fault.0 | head -n 1 | cut -c 1-160)
  [[ -n $report ]] || complain "$1: not reported: $(tail -n 2 "$folder"/fault.0)"
  echo "$1 ($2 s): $report"
  rm -f "$folder"/fault*
}
fault=(--global-batch-size 8 --dp 2 --distributed-timeout-minutes 0.1)
# In a step without CUDA graphs, and in a replayed one.
for call in 20 200; do
  for kind in stall kill; do
    begin=$SECONDS
    start fault 29777 2 "${fault[@]}" --train-iters 1000 --inject-fault "rank=1,call=$call,kind=$kind" || true
    expect_report "$kind at call $call" $((SECONDS - begin))
  done
done
# Killed from outside, at any point.
begin=$SECONDS
start fault 29777 2 "${fault[@]}" --train-iters 1000000 & running=$!
until grep -qs '"iteration":20,' "$folder/fault" || ((SECONDS - begin > 30)); do sleep 0.2; done
stopped=$(pgrep -P "$(sed -n 2p "$folder/pids.fault")")
kill -STOP "$stopped"
until grep -q 'never came' "$folder/fault.0" || ((SECONDS - begin > 55)); do sleep 0.2; done
kill -KILL "$stopped"
wait $running || true
expect_report "SIGSTOP" $((SECONDS - begin))
exit $failed
