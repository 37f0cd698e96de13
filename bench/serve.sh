#!/usr/bin/env bash
# What the HTTP server adds to the inference engine, on a CPU: the latency of a request, completions and events per
# second, memory and gaps of 1,024 open streams, each with a model of one tiny layer without a tokenizer, so that every
# token is an event; and tokens/s of a load through the server compared with the same load in one process, and the
# time between tokens under overload, with a model of 28M parameters. Medians of alternating runs; server and client share the cores.
# usage: bench/serve.sh [RUNS]   BEVATRON: the program (build/bevatron)
set -euo pipefail
runs=${1:-5}
program=$(realpath "${BEVATRON:-$(dirname "$0")/../build/bevatron}")
folder=$(mktemp -d)
server=
stop() { [[ -z $server ]] || { kill "$server" && wait "$server" || true; } 2>/dev/null; server=; }
trap 'stop; rm -rf "$folder"' EXIT
cd "$folder"

# make_model NAME LAYERS HIDDEN HEADS VOCABULARY
make_model() {
  "$program" train --family llama --num-layers "$2" --hidden-size "$3" --num-attention-heads "$4" --vocab-size "$5" \
    --max-position-embeddings 4096 --seq-length 16 --mock-data --train-iters 1 --loss-svg= --export-hf "$1" >log 2>&1 ||
    { cat log >&2; exit 1; }
}
# start MODEL [FLAGS]: sets server and url.
start() {
  rm -f ready
  "$program" serve --hf-model "$1" --port 0 "${@:2}" >ready 2>log & server=$!
  for _ in $(seq 600); do
    grep -q '"url"' ready && break
    kill -0 "$server" 2>/dev/null || { cat log >&2; exit 1; }
    sleep 0.05
  done
  url=$(sed -E 's/.*"url":"([^"]*)".*/\1/' ready)
}
online() { "$program" bench serve --url "$url" "$@" 2>log || { cat log >&2; exit 1; }; }
offline() { "$program" bench serve --offline --hf-model "$@" 2>log || { cat log >&2; exit 1; }; }
# get KEY [PERCENTILE]: from the line of a load on standard input, which must have completed.
get() {
  sed -nE 's/.*"failed":0,.*"'"$1"'":'"${2:+\\{[^\}]*\"$2\":}"'([^,}]*).*/\1/p'
}
middle() { sort -g "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
calc() { awk "BEGIN { printf \"$1\", $2 }"; }
row() { echo "| $1 | $2 | $3 |"; }

make_model tiny 1 64 4 256
make_model middle 6 512 8 8192
echo "load of the machine before: $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) cores"
echo
row "" measured target
row --- --- ---

one=(--input-len 8 --output-len 1)
start tiny
for _ in $(seq "$runs"); do
  offline tiny --requests 5000 --concurrency 1 "${one[@]}" | get e2e_ms p50 >>engine
  online --requests 5000 --concurrency 1 "${one[@]}" --no-stream >line
  get e2e_ms p50 <line >>p50
  get e2e_ms p99 <line >>p99
  line=$(online --requests 40000 --concurrency 64 "${one[@]}" --no-stream)
  get goodput_rps <<<"$line" >>completions
  online --requests 2048 --concurrency 256 --input-len 8 --output-len 64 | get output_tok_s >>events
done
stop
engine=$(middle engine)
row "latency added to the engine's $(calc %.3f "$engine") ms, p50" "$(calc %.3f "$(middle p50) - $engine") ms" "0.3 ms"
row "the same, p99" "$(calc %.3f "$(middle p99) - $engine") ms" "2 ms"
row "completions of one token, 64 at a time" "$(calc %.0f "$(middle completions)")/s" "2,000/s"
row "events, 256 streams at a time" "$(calc %.0f "$(middle events)")/s" "50,000/s"

# The KV cache is touched in full first: its memory is not that of streams.
streams=1024
start tiny --max-seqs $streams --kv-cache-tokens $((streams * 128))
online --requests 80 --concurrency 8 --input-len 4000 --output-len 1 >/dev/null
online --requests 8 --concurrency 1 --input-len 8 --output-len 64 >/dev/null
rss() { sed -nE "s/^$1:[^0-9]*([0-9]+) kB/\1/p" "/proc/$server/status"; }
before=$(rss VmRSS)
echo 5 >"/proc/$server/clear_refs" # VmHWM begins anew
threads=0
for _ in $(seq "$runs"); do
  online --requests $streams --input-len 8 --output-len 112 >line & client=$!
  while kill -0 $client 2>/dev/null; do
    now=$(find "/proc/$server/task" -mindepth 1 -maxdepth 1 | wc -l)
    threads=$((now > threads ? now : threads))
    sleep 0.2
  done
  wait $client
  calc '%.4f\n' "$(get longest_itl_ms <line) / $(get itl_ms p50 <line)" >>gaps
done
after=$(rss VmHWM)
stop
row "threads with $streams open streams" "$threads" 8
row "memory that they add" "$(calc %.1f "($after - $before) / 1024") MiB" "64 MiB"
row "their longest gap, of the median one (least - most of the runs)" \
  "$(calc %.1f "$(middle gaps)") ($(sort -g gaps | sed -n '1p;$p' | paste -sd' ' | awk '{ printf "%.1f - %.1f", $1, $2 }'))" 5

load=(--requests 64 --input-len 64 --output-len 256 --warmup 64)
start middle
for _ in $(seq "$runs"); do
  there=$(offline middle "${load[@]}" | get output_tok_s)
  here=$(online "${load[@]}" | get output_tok_s)
  echo "$there" >>offline
  echo "$here" >>online
  calc '%.4f\n' "100 * (1 - $here / $there)" >>lost
done
stop
row "28M parameters, 64 requests of 64 and 256 tokens, in one process" "$(calc %.0f "$(middle offline)") tokens/s" ""
row "the same through the server" "$(calc %.0f "$(middle online)") tokens/s" ""
row "what is lost (least - most of the pairs)" \
  "$(calc %.1f "$(middle lost)") % ($(sort -g lost | sed -n '1p;$p' | paste -sd' ' | awk '{ printf "%.1f - %.1f", $1, $2 }'))" "5 %"

# Ten times as many requests as the server can compute: most are refused, and those that run keep their pace.
few=(--input-len 64 --output-len 64 --warmup 16)
start middle --max-seqs 16 --max-waiting 32
for _ in $(seq "$runs"); do
  line=$(online --requests 128 --concurrency 16 "${few[@]}")
  usual=$(get itl_ms p99 <<<"$line")
  rate=$(calc %.1f "10 * $(get goodput_rps <<<"$line")")
  line=$(online --requests 1280 --rate "$rate" "${few[@]}" | sed 's/"failed":[0-9]*/"failed":0/')
  calc '%.4f\n' "100 * ($(get itl_ms p99 <<<"$line") / $usual - 1)" >>slower
done
stop
row "time between tokens, p99, at 10 times the load that fills the server, over that at its limit (least - most)" \
  "+$(calc %.1f "$(middle slower)") % ($(sort -g slower | sed -n '1p;$p' | paste -sd' ' | awk '{ printf "%.1f - %.1f", $1, $2 }'))" "10 %"
echo
echo "load of the machine after: $(cut -d' ' -f1-3 /proc/loadavg)"
