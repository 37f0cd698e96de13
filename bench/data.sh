#!/usr/bin/env bash
# Index build and sample reading compared with megatron-core, on the same files, in alternating runs. Megatron comes
# from BEV_PEER_PYTHON (a python with megatron-core); without it only our results are printed.
# usage: bench/data.sh [DOCUMENTS] [TOKENS] [SEQ_LENGTH] [FOLDER]
set -eu
cd "$(dirname "$0")/.."
documents=${1:-1000000} tokens=${2:-1000000000} length=${3:-1024}
folder=$(mktemp -d -p "${4:-${TMPDIR:-/tmp}}")
trap 'rm -rf "$folder"' EXIT
build/bench/data "$folder" "$documents" "$tokens" "$length"
[ -z "${BEV_PEER_PYTHON:-}" ] || "$BEV_PEER_PYTHON" bench/peers/data_megatron.py "$folder" "$length" 2>/dev/null
