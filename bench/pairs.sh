# Shared by the comparisons of this folder; to be sourced. A peer runs with jemalloc, which is best for PyTorch.
jemalloc=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2
peer() { LD_PRELOAD=$([ -f $jemalloc ] && echo $jemalloc || true) "$BEV_PEER_PYTHON" "bench/peers/$1" "${@:2}"; }
field() { sed "s/.*\"$1\": \([0-9.]*\).*/\1/"; }
ratio() { awk "BEGIN { printf \"%.3f\", $1 / $2 }"; }
# Median of the arguments, or - if there are none; and the median with minimum and maximum.
median() { [ $# -eq 0 ] && echo - || printf '%s\n' "$@" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
spread() {
  [ $# -eq 0 ] && echo - && return
  printf '%s\n' "$@" | sort -n | awk '{ v[NR] = $1 } END { printf "%s (%s - %s)\n", v[int((NR + 1) / 2)], v[1], v[NR] }'
}
