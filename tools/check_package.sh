#!/usr/bin/env bash
# Installs the build, builds the examples against what was installed, and runs them; makes the Debian packages and
# runs the program from where they put it.
# usage: tools/check_package.sh BUILD_FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(cd "${1:?usage: tools/check_package.sh BUILD_FOLDER}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "package: $1" >&2
  exit 1
}

cmake --install "$build" --prefix "$work/prefix" >"$work/log" || { cat "$work/log"; fail "cannot install"; }
for hidden in app train/trainer.h backend/cuda/runtime/queue.h parallel/store/fsdp_unit_cache.cpp; do
  [[ ! -e $work/prefix/include/bevatron/$hidden ]] || fail "$hidden is not public, and was installed"
done

# From a folder of their own, so that nothing of the source tree can be found.
cp -r examples "$work/examples"
{ cmake -S "$work/examples" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/prefix" &&
  cmake --build "$work/build"; } >"$work/log" 2>&1 || { cat "$work/log"; fail "the examples do not build"; }
for example in train_loop own_layer own_schedule; do
  "$work/build/$example" >"$work/$example" || { cat "$work/$example"; fail "$example fails"; }
done
lines=$(wc -l <"$work/train_loop")
cmp <(head -n $((lines / 2)) "$work/train_loop") <(tail -n $((lines / 2)) "$work/train_loop") ||
  fail "train_loop: two ranks differ from one"
awk '{ loss[NR] = $4 } END { exit !(NR == 12 && loss[6] < 0.6 * loss[1]) }' "$work/train_loop" ||
  fail "train_loop: nothing is learnt"

(cd "$build" && cpack -G DEB -B "$work/deb") >"$work/log" 2>&1 || { cat "$work/log"; fail "cannot make the packages"; }
program=$(echo "$work"/deb/bevatron_*.deb)
dpkg-deb --field "$program" Depends | grep -q libdnnl || fail "the package does not ask for its libraries"
dpkg-deb --extract "$program" "$work/root"
for file in man/man1/bevatron.1 bash-completion/completions/bevatron zsh/vendor-completions/_bevatron \
            fish/vendor_completions.d/bevatron.fish; do
  [[ -s $work/root/usr/share/$file ]] || fail "the package has no $file"
done
bash -n "$work/root/usr/share/bash-completion/completions/bevatron" || fail "the completion of bash is no script"
train=(root/usr/bin/bevatron train --preset llama3.2-1b --num-layers 1 --hidden-size 64 --ffn-hidden-size 64
       --num-attention-heads 2 --num-query-groups 2 --kv-channels 32 --vocab-size 128 --device cpu --mock-data
       --seq-length 16 --micro-batch-size 1 --train-iters 2 --loss-svg "")
(cd "$work" && "${train[@]}" >log 2>&1) || { cat "$work/log"; fail "the packaged program fails"; }
if [[ -e $work/root/usr/lib/bevatron/libbev_mpi.so ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  (cd "$work" && mpirun --oversubscribe -n 2 "${train[@]}" >log 2>&1) ||
    { cat "$work/log"; fail "the packaged program fails under mpirun"; }
fi
echo "package: examples run against the installed library, and the packaged program trains"
