#!/usr/bin/env bash
# run_tests.sh [--full] PRESET...: for each preset, configures, builds its tests and runs them with
# ctest; --full: the long tests too, in the release build (under a sanitizer they would take hours).
# The last line is "N passed, N failed"; a build that breaks counts as one failure.
set -uo pipefail
cd "$(dirname "$0")/.."

full=
[[ ${1:-} != --full ]] || { full=1; shift; }

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
  long=()
  [[ -z $full || $preset != release ]] || long=(BEV_TEST_FULL=1 GTEST_ALSO_RUN_DISABLED_TESTS=1)
  env "${long[@]}" ctest --test-dir "$folder" -j "$(nproc)" --output-on-failure | tee "$log"
  counts=$(awk '/tests failed out of/ { print $(NF - 5), $NF }' "$log")
  read -r bad all <<<"${counts:-0 0}"
  ((failed += bad, passed += all - bad))
done

echo "$passed passed, $failed failed"
((failed == 0))
