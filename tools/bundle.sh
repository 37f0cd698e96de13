#!/usr/bin/env bash
# Gathers the program and the libraries that it needs, so that the folder runs on any machine with glibc 2.36 or newer, and packs
# it as FOLDER.tar.xz, of at most 20 MiB with kernels for one architecture: it travels to GPU machines again and again.
# usage: tools/bundle.sh [FOLDER] [MORE_PROGRAMS...]   CUDA's own libraries and MPI are taken from where it runs.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/bundle}
shift || true
rm -rf "$out"
mkdir -p "$out/lib"
for program in build/bevatron "$@"; do
  cp "$program" "$out/"
  strip "$out/$(basename "$program")"
done
if [[ -e build/libbev_mpi.so ]]; then
  cp build/libbev_mpi.so "$out/"
  strip "$out/libbev_mpi.so"
fi

# Of the system: what must fit the kernel and the C library there, and the driver's and CUDA's side.
not_ours='/(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|cuda|cudart|cublas|cublasLt|cudnn|nccl|mpi|open-.*))\.so'
ldd build/bevatron | awk '/=> \// { print $3 }' | sort -u | grep -vE "$not_ours" | while read -r library; do
  cp -L "$library" "$out/lib/"
done
strip "$out"/lib/*.so* 2>/dev/null || true
# This machine has the libraries too, so that it starts says little: it must start with its own.
strangers=$(env -i ldd "$out/bevatron" | awk '/=> / { print $3 }' | grep -vE "$not_ours" |
  grep -vF "$(realpath "$out")/lib/" || true)
[[ -z $strangers ]] || { printf 'bundle: %s takes from elsewhere:\n%s\n' "$out/bevatron" "$strangers" >&2; exit 1; }
env -i "$out/bevatron" version >/dev/null || { echo "bundle: $out/bevatron does not start" >&2; exit 1; }

archs=$(build/bevatron version | sed -n 's/.*kernels for //p' | wc -w)
most=$(((10 + 10 * (archs > 0 ? archs : 1)) << 20))
tar -C "$(dirname "$out")" -cf - "$(basename "$out")" | xz -T0 -3 >"$out.tar.xz"
bytes=$(stat -c %s "$out.tar.xz")
mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'; }
echo "bundle: $out ($(du -sh "$out" | cut -f1)), packed $(mib "$bytes") of at most $(mib "$most")"
((bytes <= most)) || { echo "bundle: $out.tar.xz is too large" >&2; exit 1; }
