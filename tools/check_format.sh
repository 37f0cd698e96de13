#!/usr/bin/env bash
# check_format.sh [--fix]: every source is formatted as clang-format 14 does it.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=(--dry-run -Werror)
[[ ${1:-} != --fix ]] || mode=(-i)
for folder in src tests bench examples; do
  [[ ! -d $folder ]] || find "$folder" -type f -regex '.*\.\(h\|cpp\|cuh\|cu\)' -print0
done | xargs -0 -r -n 8 -P "$(nproc)" clang-format-14 --style=file "${mode[@]}"
