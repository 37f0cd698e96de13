#!/usr/bin/env bash
# check_fanout.sh [ROOT]: a change in a header of src/kernels compiles at most 68 sources of src/ and tests/ again. CPU
# kernels count once for each instruction level. Read from #include lines; needs no compiler.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

# Not counted: kernels.h only declares the tables, and device.h is how every test on a GPU opens one.
find src tests -type f \( -name '*.h' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu' \) | sort |
  xargs -r grep -HE '^ *# *include *"' | awk -v limit=68 -v exempt='kernels.h device.h' '
{
  split($0, quoted, "\""); file = quoted[1]; sub(/:[^:]*$/, "", file)
  target = quoted[2] ~ /^tests\// ? quoted[2] : "src/" quoted[2]
  users[target] = users[target] " " file
}
# All sources that open a header, through others too.
function count(header,   todo, seen, names, n, i, at, sources, first, last) {
  todo[last = 1] = header; seen[header] = 1
  for (first = 1; first <= last; ++first) {
    at = todo[first]
    if (at ~ /\.(cpp|cu)$/) { sources += at ~ /^src\/backend\/cpu\/kernels\// ? 3 : 1; continue }
    n = split(users[at], names, " ")
    for (i = 1; i <= n; ++i) if (!(names[i] in seen)) { seen[names[i]] = 1; todo[++last] = names[i] }
  }
  return sources
}
END {
  split(exempt, names, " "); for (i in names) skip["src/kernels/" names[i]] = 1
  for (header in users) {
    if (header !~ /^src\/kernels\/[^\/]*\.h$/ || header in skip) continue
    if ((found = count(header)) > limit) {
      print "fanout: " header ": " found " sources include it, at most " limit " may"; broken = 1
    }
  }
  exit broken
}'
