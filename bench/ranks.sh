#!/usr/bin/env bash
# Training speed of the same global batch on one rank with all cores, on thread ranks, and on processes over MPI and
# over TCP: the median of alternating runs. Every run computes the same sum, so the losses must agree.
# usage: bench/ranks.sh [RUNS] [ITERATIONS] [RANKS]
set -eu
cd "$(dirname "$0")/.."
runs=${1:-5} iterations=${2:-30} ranks=${3:-2}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
train=(build/bevatron train --family llama --num-layers 4 --hidden-size 256 --num-attention-heads 8 --num-query-groups 4
       --ffn-hidden-size 704 --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear
       --seq-length 256 --micro-batch-size 2 --global-batch-size $((2 * ranks)) --mock-data --vocab-size 4096
       --lr 1e-3 --train-iters "$iterations" --loss-svg '')

alone() { "${train[@]}" --metrics-out "$1"; }
threads() { "${train[@]}" --dp "$ranks" --metrics-out "$1"; }
mpi() { mpirun --oversubscribe -n "$ranks" "${train[@]}" --dp "$ranks" --metrics-out "$1"; }
tcp() {
  local rank
  export WORLD_SIZE=$ranks MASTER_ADDR=localhost MASTER_PORT=29533
  for rank in $(seq 1 $((ranks - 1))); do RANK=$rank "${train[@]}" --dp "$ranks" --metrics-out "$1" & done
  RANK=0 "${train[@]}" --dp "$ranks" --metrics-out "$1"
  wait
}
# Tokens per second in the second half of a run, median over its steps.
speed() {
  sed 's/.*"tokens_per_second": *\([0-9.e+]*\).*/\1/' "$1" | tail -n $((iterations / 2)) | sort -g |
    awk '{ v[NR] = $1 } END { printf "%.0f\n", v[int((NR + 1) / 2)] }'
}

cases=(alone threads tcp)
! command -v mpirun >/dev/null || cases+=(mpi)
for _ in $(seq "$runs"); do
  for case in "${cases[@]}"; do
    ($case "$folder/metrics" >/dev/null 2>"$folder/log") || { cat "$folder/log" >&2; exit 1; }
    speed "$folder/metrics" >>"$folder/$case"
    sed 's/.*"loss": *\([0-9.e+-]*\).*/\1/' "$folder/metrics" | tail -n 1 >"$folder/$case.loss"
  done
done
echo "| ranks | tokens/s (least - most) | last loss |"
echo "| --- | --- | --- |"
name_alone="1 rank, $(nproc) cores" name_threads="$ranks threads, dp $ranks"
name_tcp="$ranks processes over TCP, dp $ranks" name_mpi="$ranks processes over MPI, dp $ranks"
for case in "${cases[@]}"; do
  name=name_$case
  read -r mid least most <<<"$(sort -n "$folder/$case" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)], v[1], v[NR] }')"
  echo "| ${!name} | $mid ($least - $most) | $(cat "$folder/$case.loss") |"
done
