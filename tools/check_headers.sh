#!/usr/bin/env bash
# Every header compiles alone. Results are kept under build/headers, so only changed ones run again.
set -euo pipefail
cd "$(dirname "$0")/.."
exec make --no-print-directory -k -s -j "$(nproc)" -f tools/headers.mk
