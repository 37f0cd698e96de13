#!/usr/bin/env bash
# fuzz.sh [SECONDS [READER...]]: searches with libFuzzer for files that the readers of tests/fuzz do not
# stand, SECONDS (60) for each reader, in bounded memory. What it learns stays in build/fuzz/corpus. A
# file that does harm is left in build/fuzz/found/READER: mend the reader and move the file to
# tests/fuzz/cases/READER, where fuzz_test keeps trying it.
set -uo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift
[[ -f build/fuzz/build.ninja ]] || cmake --preset fuzz || exit 1
cmake --build build/fuzz --target fuzz_search || exit 1
search=build/fuzz/tests/fuzz_search
readers=("$@")
((${#readers[@]})) || mapfile -t readers < <($search --readers)

failed=0
for reader in "${readers[@]}"; do
  corpus=build/fuzz/corpus/$reader
  found=build/fuzz/found/$reader
  cases=tests/fuzz/cases/$reader
  log=build/fuzz/$reader.log
  mkdir -p "$corpus" "$found"
  folders=("$corpus")
  [[ ! -d $cases ]] || folders+=("$cases")
  if $search "--reader=$reader" "--seeds=$corpus" -max_total_time="$seconds" -rss_limit_mb=2048 \
    -timeout=10 -max_len=65536 -artifact_prefix="$found/" "${folders[@]}" >"$log" 2>&1; then
    printf '%-17s %s\n' "$reader" "$(awk '/DONE/ { $1 = ""; print }' "$log")"
  else
    printf '%-17s FAILED: %s\n' "$reader" "$(grep -aE '^SUMMARY|^==.*ERROR' "$log" | tail -1)"
    failed=1
  fi
done
((failed == 0)) || echo "fuzz: see build/fuzz/READER.log; the files are in build/fuzz/found" >&2
exit "$failed"
