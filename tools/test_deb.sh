#!/usr/bin/env bash
# Installs the Debian package of a build into a root of its own, fresh from debootstrap, with what the package asks
# for and nothing else, and trains there. Needs root and Debian's archive.
# usage: tools/test_deb.sh BUILD_FOLDER
set -euo pipefail
build=$(cd "${1:?usage: tools/test_deb.sh BUILD_FOLDER}" && pwd)
[[ $(id -u) == 0 ]] || { echo "test_deb: a root of its own needs the rights of root: run it with sudo" >&2; exit 2; }
command -v debootstrap >/dev/null || apt-get install --yes debootstrap
work=$(mktemp -d)
trap 'umount "$work/root/proc" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
. /etc/os-release
root=$work/root

echo "a fresh root of $VERSION_CODENAME ..."
debootstrap --variant=minbase "$VERSION_CODENAME" "$root" >"$work/log" || { tail "$work/log" >&2; exit 1; }
(cd "$build" && cpack -G DEB -B "$work/deb") >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
cp "$work"/deb/bevatron_*.deb "$root/tmp/bevatron.deb"
mount -t proc proc "$root/proc"

echo "apt-get install ./bevatron.deb ..."
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"; }
inside sh -c 'apt-get update && apt-get install --yes --no-install-recommends /tmp/bevatron.deb' >"$work/log" 2>&1 ||
  { tail -n 20 "$work/log" >&2; exit 1; }

echo "bevatron train ..."
inside bevatron train --family llama --num-layers 2 --hidden-size 64 --ffn-hidden-size 128 --num-attention-heads 2 \
  --vocab-size 128 --normalization RMSNorm --swiglu --disable-bias-linear --use-rotary-position-embeddings --device auto \
  --mock-data --seq-length 32 --micro-batch-size 2 --train-iters 30 --lr 0.01 --loss-svg "" --save /tmp/saved >"$work/log" 2>&1 ||
  { tail -n 20 "$work/log" >&2; exit 1; }
inside bevatron checkpoint verify /tmp/saved
inside apt-get purge --yes bevatron >"$work/log" 2>&1
left=$(inside find /usr -path /usr/share/doc -prune -o -name '*bevatron*' -print)
[[ -z $left ]] || { echo "test_deb: removing the package leaves $left" >&2; exit 1; }
echo "deb: installs into a clean root, trains, and goes without a trace"
