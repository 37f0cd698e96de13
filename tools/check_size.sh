#!/usr/bin/env bash
# check_size.sh [ROOT]: what git tracks has at most 34 MiB, since it travels to GPU machines with every run. Prints the size.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"
if ! git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  echo "size: no git here, tracked files are not counted"
  exit 0
fi
{ git ls-files -z | xargs -0 stat -c %s 2>/dev/null || true; } | awk -v most=34 '
{ bytes += $1 }
END {
  printf "size: tracked files %.1f MiB of at most %d MiB\n", bytes / 1048576, most
  exit bytes > most * 1048576
}'
