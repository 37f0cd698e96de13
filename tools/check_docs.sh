#!/usr/bin/env bash
# check_docs.sh [ROOT]: every `Type::member` and every file that the documentation names in backticks exists. Prints what does not.
set -uo pipefail
cd "${1:-$(dirname "$0")/..}"

broken=0
complain() {
  echo "docs: $1"
  broken=1
}
names() { grep -HnoE '`[^`]+`' README.md docs/*.md bench/README.md 2>/dev/null | grep -v 'docs/flags.md:' | tr -d '`'; }
files=$(git ls-files 2>/dev/null || find . -type f | sed 's|^\./||')

# A member is declared where its type is defined, or defined by its full name.
while IFS=: read -r page line text; do
  type=${text%%::*} member=${text##*::}
  type=${type##*[^A-Za-z0-9_]} member=${member%%[^A-Za-z0-9_]*}
  [[ $type =~ ^[A-Z] && -n $member ]] || continue
  grep -rlE "(class|struct) $type( final)? *[:{]" src --include='*.h' --include='*.cuh' |
    xargs -r grep -qE "^[^/]*\\b$member\\b *[()({;=,]" ||
    grep -rqE "\\b$type::$member\\b" src || complain "$page:$line: there is no $type::$member"
done < <(names | grep -E ':[^:]*[A-Za-z]::[A-Za-z]')

# A path, or the name of a source alone.
while IFS=: read -r page line path; do
  path=${path%/}
  grep -qE "(^|/)${path//./\\.}(/|$)" <<<"$files" || complain "$page:$line: there is no $path"
done < <(names | grep -E ':(src|tests|tools|docs|bench|cmake|configs|examples)/[A-Za-z0-9_./-]+$|:[a-z0-9_/]+\.(h|cpp|cu|cuh|sh)$')

exit "$broken"
