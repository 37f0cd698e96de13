#!/usr/bin/env bash
# run_tests.sh PRESET...: for each preset, configures, builds its tests and runs them with ctest.
# The last line is "N passed, N failed"; a build that breaks counts as one failure.
set -uo pipefail
cd "$(dirname "$0")/.."

passed=0
failed=0
for preset in "$@"; do
  folder=build
  [[ $preset == release ]] || folder=build/$preset
  target=bev_tests
  [[ $preset != release ]] || target=all

  echo "== $preset"
  [[ -f $folder/build.ninja ]] || cmake --preset "$preset" || { ((failed += 1)); continue; }
  cmake --build "$folder" --target "$target" || { ((failed += 1)); continue; }
  log=$folder/ctest.log
  ctest --test-dir "$folder" -j "$(nproc)" --output-on-failure | tee "$log"
  counts=$(awk '/tests failed out of/ { print $(NF - 5), $NF }' "$log")
  read -r bad all <<<"${counts:-0 0}"
  ((failed += bad, passed += all - bad))
done

echo "$passed passed, $failed failed"
((failed == 0))
