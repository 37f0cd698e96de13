#!/usr/bin/env bash
# check_terms.sh [ROOT]: a newcomer who greps for a term of the field finds it in the file that does it: every row of
# tools/terms.txt. Prints the rows that do not hold.
set -uo pipefail
cd "${1:-$(dirname "$0")/..}"

broken=0 rows=0
while IFS=$'\t' read -r term file; do
  [[ -n $term && $term != \#* ]] || continue
  rows=$((rows + 1))
  # A term may be broken over two lines of a comment.
  tr '\n' ' ' 2>/dev/null <"$file" | sed 's# *//* *# #g' | grep -qiF -- "$term" && continue
  echo "terms: \"$term\" is not found in $file"
  broken=1
done <tools/terms.txt
((rows >= 25)) || { echo "terms: tools/terms.txt has $rows rows, less than 25"; broken=1; }
exit "$broken"
