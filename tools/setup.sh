#!/usr/bin/env bash
# setup.sh [--program] [PACKAGE...]: installs the Debian packages Bevatron needs, those named besides and, where nvcc is, the
# headers of cuDNN's frontend. --program: only what the program on one machine is built with, no tests, MPI or cuDNN. Does nothing,
# quickly, when all is present.
set -euo pipefail

program_only=
[[ ${1:-} != --program ]] || { program_only=1; shift; }

packages=(
  g++ cmake ninja-build ccache lld                                    # build
  libdnnl-dev nlohmann-json3-dev libyaml-cpp-dev libfmt-dev           # libraries
  libpcre2-dev libutf8proc-dev                                        # tokenizers
  zlib1g-dev libzstd-dev                                              # compressed text
  libxxhash-dev                                                       # checksums
  libssl-dev                                                          # the server, with Boost
  "$@"
)

# Any Boost from 1.74 on serves; packages of two versions exclude each other, so another is not asked for.
has_boost() {
  local folder
  for folder in ${BOOST_ROOT:+"$BOOST_ROOT" "$BOOST_ROOT/include"} /usr/include /usr/local/include; do
    awk '/^#define BOOST_VERSION / { enough = $3 >= 107400 } END { exit !enough }' \
      "$folder/boost/version.hpp" 2>/dev/null && return
  done
  return 1
}
has_boost || packages+=(libboost-dev)
[[ -n $program_only ]] || packages+=(
  libopenmpi-dev openmpi-bin                                          # ranks in several processes
  libgtest-dev libgmock-dev clang-format-14 dpkg-dev xz-utils         # tests, checks and packages
  curl openssl                                                        # commands of docs/serving.md
)

# The headers alone, of the Python package. A build without them works: then our own kernels compute
# all of attention.
fetch_cudnn_frontend() {
  local version=1.16.0 folder wheel
  folder=$(cd "$(dirname "$0")/.." && pwd)/third_party/cudnn_frontend
  [[ -e $folder/include/cudnn_frontend.h ]] && return
  [[ -x $(command -v nvcc || echo "${CUDA_PATH:-/usr/local/cuda}/bin/nvcc") ]] || return 0
  echo "setup: fetching the headers of cuDNN's frontend $version"
  wheel=$(mktemp -d)
  if python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$wheel" \
    "nvidia-cudnn-frontend==$version" 2>/dev/null; then
    mkdir -p "$folder"
    python3 -m zipfile -e "$wheel"/*.whl "$wheel/unpacked"
    cp -r "$wheel/unpacked/include" "$folder"
  else
    echo "setup: cannot fetch them (python3 with pip, and a package index?); attention goes without cuDNN" >&2
  fi
  rm -r "$wheel"
}
[[ -n $program_only ]] || fetch_cudnn_frontend

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
((${#missing[@]})) || exit 0

as_root=()
if ((EUID != 0)); then
  as_root=(sudo -n)
fi
give_up() {
  echo "setup: $1; please install these packages: ${missing[*]}" >&2
  exit 1
}
command -v apt-get >/dev/null || give_up "no apt-get here"
((EUID == 0)) || sudo -n true 2>/dev/null || give_up "neither root nor sudo without a password"

echo "setup: installing ${missing[*]}"
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y
         --no-install-recommends --no-remove "${missing[@]}")
"${as_root[@]}" apt-get update -qq || give_up "apt-get update failed"
"${install[@]}" >/dev/null || give_up "apt-get install failed"
