#!/usr/bin/env bash
# Every header compiles alone. One that its own .cpp includes before all else is shown by the build; the others are compiled here.
# Results are kept under build/headers, so only changed ones run again. `.cuh` needs nvcc and is left to the CUDA build.
set -euo pipefail
cd "$(dirname "$0")/.."

# Does NAME.cpp begin with its own header?
shown_by_build() {
  local source=${1%.h}.cpp
  [[ -f $source ]] && [[ $(grep -m1 '^#include' "$source") == "#include \"${1#src/}\"" ]]
}

headers=()
while read -r header; do
  shown_by_build "$header" || headers+=("$header")
done < <(find src tests -name '*.h' -not -path 'src/backend/cuda/*')
exec make --no-print-directory -k -s -j "$(nproc)" -f tools/headers.mk headers="${headers[*]}"
