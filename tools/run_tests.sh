#!/usr/bin/env bash
# run_tests.sh [--full] PRESET...: for each preset, configures, builds its tests and runs them with
# ctest, while the next preset builds; --full: the long tests too, in the release build (under a
# sanitizer they would take hours). With several presets the release build is also bundled, to hold
# what travels to GPU machines small. Ends with the time of every step, the slowest tests and the
# sizes; the last line is "N passed, N failed", where a step that breaks counts as one failure.
set -uo pipefail
cd "$(dirname "$0")/.."

full=
[[ ${1:-} != --full ]] || { full=1; shift; }

passed=0
failed=0
times=()
sizes=()
tests=()    # "SECONDS PRESET NAME" of each that ran
running=()  # preset, folder and process of the tests under way

took() { times+=("$(printf '%6d s  %s' "$2" "$1")"); }
# step NAME COMMAND...: runs it and notes its time; a failure is counted.
step() {
  local name=$1 begin=$SECONDS status
  shift
  "$@"
  status=$?
  took "$name" $((SECONDS - begin))
  ((status == 0)) || ((failed += 1))
  return "$status"
}
# sized COMMAND...: the same for a check whose output says a size.
sized() {
  local text
  if text=$("$@" 2>&1); then ((passed += 1)); else ((failed += 1)); fi
  sizes+=("$text")
}

start_tests() {
  local preset=$1 folder=$2 long=()
  [[ -z $full || $preset != release ]] || long=(BEV_TEST_FULL=1 GTEST_ALSO_RUN_DISABLED_TESTS=1)
  {
    SECONDS=0
    env "${long[@]}" ctest --test-dir "$folder" -j "$(nproc)" --output-on-failure
    echo "tests took $SECONDS s"
  } >"$folder/ctest.log" 2>&1 &
  running=("$preset" "$folder" $!)
}
# Shows what the tests under way say until they end, and counts them.
finish_tests() {
  ((${#running[@]})) || return 0
  local preset=${running[0]} log=${running[1]}/ctest.log counts bad all
  echo "== $preset: tests"
  tail -n +1 -f --pid="${running[2]}" "$log"
  running=()
  took "$preset: tests" "$(awk '/^tests took/ { print $3 }' "$log")"
  mapfile -t -O "${#tests[@]}" tests < <(awk -v preset="$preset" '/ Test +#[0-9]+: / && / sec *$/ {
    sub(/.* Test +#[0-9]+: /, ""); print $(NF - 1), preset, $1 }' "$log")
  counts=$(awk '/tests failed out of/ { print $(NF - 5), $NF }' "$log")
  read -r bad all <<<"${counts:-1 1}"
  ((failed += bad, passed += all - bad))
}

for preset in "$@"; do
  folder=build
  [[ $preset == release ]] || folder=build/$preset
  target=bev_tests
  [[ $preset != release ]] || target=all

  echo "== $preset: build"
  [[ -f $folder/build.ninja ]] || step "$preset: configure" cmake --preset "$preset" || continue
  # The tests of the preset before come first: some watch the time.
  step "$preset: build" nice -n 10 cmake --build "$folder" --target "$target" || continue
  finish_tests
  start_tests "$preset" "$folder"
  if [[ $preset == release ]] && (($# > 1)); then
    sized tools/check_size.sh
    sized tools/bundle.sh
  fi
done
finish_tests

if ((${#tests[@]})); then
  echo "== slowest tests"
  printf '%s\n' "${tests[@]}" | sort -rn | head -10 | awk '{ printf "%8.1f s  %s: %s\n", $1, $2, $3 }'
fi
echo "== time of each step (tests run while the next preset builds)"
printf '%s\n' "${times[@]}" "$(printf '%6d s  all' $SECONDS)"
if ((${#sizes[@]})); then
  echo "== sizes"
  printf '%s\n' "${sizes[@]}"
fi
echo "$passed passed, $failed failed"
((failed == 0))
