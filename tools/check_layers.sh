#!/usr/bin/env bash
# check_layers.sh [ROOT]: #include lines under src/ point downward only, as tools/layers.txt says.
set -euo pipefail
layers=$(cd "$(dirname "$0")" && pwd)/layers.txt
cd "${1:-$(dirname "$0")/..}"

find src -type f -name '*.[hc]*' | sort | xargs -r grep -HnE '^ *# *include *"' | awk -v layers="$layers" '
function folder_of(path) {  # "backend/cpu/kernels/gemm.h" -> "backend/cpu"; "" when unknown
  while (sub(/\/[^\/]*$/, "", path))
    if (path in level) return path
  return ""
}
function complain(text) { print "layers: " where ": " text; broken = 1 }
BEGIN {
  while ((getline line < layers) > 0) {
    if (line ~ /^#/ || line == "") continue
    only = line ~ /^only /
    if (only) { owner = line; sub(/^only /, "", owner); sub(/:.*/, "", owner); sub(/.*: */, "", line) }
    n = split(line, names, " ")
    if (!only) ++height
    for (i = 1; i <= n; ++i) if (only) owners[names[i]] = owner; else level[names[i]] = height
  }
}
{
  split($0, parts, ":"); where = parts[1] ":" parts[2]
  split($0, quoted, "\""); target = quoted[2]
  from = parts[1]; sub(/^src\//, "", from); from = folder_of(from)
  to = folder_of(target)
  if (from == "") complain("this folder is not in tools/layers.txt")
  else if (to == "") complain("\"" target "\" is not a path below src/ in a known folder")
  else if (from == to) next
  else if (level[to] >= level[from]) complain(from " may not include " to " (\"" target "\")")
  else if (to in owners && owners[to] != from) complain("only " owners[to] " may include " to)
}
END { exit broken }'
