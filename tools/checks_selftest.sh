#!/usr/bin/env bash
# The layer, fanout, documentation, rule and kernel call checks must pass a clean tree and fail on each of these mistakes.
set -uo pipefail
tools=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
wrong=0

# expect MESSAGE CHECK FILE TEXT: on a tree of one clean file plus FILE, CHECK fails with MESSAGE,
# or passes when MESSAGE is "ok".
expect() {
  local want=$1 check=$2 file=$3 text=$4 output
  rm -rf "${tree:?}"/*
  mkdir -p "$tree/src/base" "$tree/$(dirname "$file")"
  printf '#pragma once\nnamespace bev {\nint one();\n}\n' >"$tree/src/base/one.h"
  printf '%b\n' "$text" >"$tree/$file"
  if output=$("$tools/check_$check.sh" "$tree" 2>&1); then
    [[ $want == ok ]] && return
  else
    [[ $output == *"$want"* ]] && return
  fi
  printf 'selftest: check_%s: wanted "%s" for %s: %.200s\n%s\n' "$check" "$want" "$file" "$text" "$output"
  wrong=1
}

# many_include MESSAGE FOLDER COUNT LINE: the same of check_fanout, on COUNT sources in FOLDER that begin with LINE.
many_include() {
  local want=$1 folder=$2 count=$3 line=$4 output i
  rm -rf "${tree:?}"/*
  mkdir -p "$tree/src/ops" "$tree/$folder" "$tree/tests"
  echo '#include "kernels/gemm.h"' >"$tree/src/ops/own.h"
  for ((i = 0; i < count; ++i)); do echo "$line" >"$tree/$folder/a$i.cpp"; done
  output=$("$tools/check_fanout.sh" "$tree" 2>&1) && output=ok
  [[ $output == *"$want"* ]] && return
  printf 'selftest: check_fanout: wanted "%s": %s\n' "$want" "$output"
  wrong=1
}

expect ok layers src/tensor/a.cpp '#include "base/one.h"\n#include <vector>'
expect ok layers src/app/a.cpp '#include "backend/cpu/backend.h"\n#include "train/loop.h"'
expect ok layers src/backend/cpu/kernels/a.cpp '#include "kernels/gemm.h"\n#include "backend/cpu/pool.h"'
expect "base may not include tensor" layers src/base/a.cpp '#include "tensor/shape.h"'
expect "infer may not include plan" layers src/infer/a.h '#include "plan/memory.h"'
expect "only app may include backend/cpu" layers src/train/a.cpp '#include "backend/cpu/backend.h"'
expect "backend/cpu may not include autograd" layers src/backend/cpu/a.cpp '#include "autograd/tape.h"'
expect "backend/cuda may not include backend/cpu" layers src/backend/cuda/a.cu '#include "backend/cpu/backend.h"'
expect "not a path below src/" layers src/base/a.cpp '#include "one.h"'
expect "not in tools/layers.txt" layers src/stray/a.cpp '#include "base/one.h"'

expect ok docs docs/a.md 'In `src/base/one.h`, and `one.h`; `std::vector` is not ours.'
expect "there is no src/base/two.h" docs docs/a.md 'In `src/base/two.h`.'
expect "there is no Engine::step" docs docs/a.md 'What `Engine::step` does.'

many_include "kernels/gemm.h: 69 sources include it" src/ops 69 '#include "kernels/gemm.h"'
many_include "kernels/gemm.h: 69 sources" src/backend/cpu/kernels 23 '#include "kernels/gemm.h"'
many_include "kernels/gemm.h: 69 sources" src/ops 69 '#include "ops/own.h"'
many_include ok src/ops 68 '#include "kernels/gemm.h"'
many_include ok src/ops 69 '#include "kernels/kernels.h"'

expect "comment that begins with Of" rules src/base/a.cpp 'int a;  // Of the model.'
expect "outside of the field" rules src/base/a.cpp '// Runs beside the GEMM.'
expect "outside of the field" rules docs/a.md 'Whoever calls it.'
expect ok rules src/base/a.cpp 'const int beside = 1;  // A name is not a comment.'
expect ok rules src/base/a.cpp 'static int add(int a, int b);\nstatic constexpr int kA = 1;\nstatic_assert(kA == 1);\nconst int kB = 2;\nconstexpr int kTable[] = {1,\n  2};'
expect ok rules src/base/a.cpp '// exit(1), thread_local\nint f() {\n  int count = 0;\n  return count;\n}\nthrow_if("getenv exit(1)");'
expect ok rules src/base/environment.cpp 'auto a() { return std::getenv("A"); }'
expect ok rules src/models/a.cpp 'Decoder make_decoder();\n#include "models/decoder.h"'
expect ok rules src/tokenizer/a.cpp 'Decoder make_decoder();'
expect "dynamic_cast" rules src/base/a.cpp 'auto* a = dynamic_cast<A*>(b);'
expect "type outside src/models" rules src/parallel/a.cpp 'const Decoder& stage();'
expect "type outside src/models" rules src/plan/a.cpp 'DecoderLayer layer(config);'
expect "header outside src/models" rules src/bridge/a.cpp '#include "models/layer.h"'
expect "mutable static" rules src/base/a.cpp '  static int count = 0;'
expect "mutable static" rules src/base/a.cpp 'static std::vector<int> all;'
expect "mutable static" rules src/base/a.h 'inline static int count{0};'
expect "mutable global" rules src/base/a.cpp 'int count = 0;'
expect "mutable global" rules src/base/a.cpp 'std::map<int, int> table;'
expect "thread_local" rules src/base/a.cpp 'thread_local int x;'
expect "exit(" rules src/base/a.cpp '  std::exit(1);'
expect "exit(" rules src/base/a.cpp '  if (bad) exit(1);'
expect "getenv outside" rules src/base/a.cpp 'auto a() { return std::getenv("A"); }'
expect "CUDA include" rules src/nn/a.cpp '#include <cuda_runtime.h>'
expect "CUDA include" rules tests/nn/a.cpp '#include <nccl.h>'
expect "heavy include" rules src/base/a.h '#include <functional>'
expect ok rules src/serve/a.cpp '#include <boost/asio/post.hpp>\n#include <openssl/ssl.h>'
expect ok rules tests/serve/a.cpp '#include <openssl/x509.h>'
expect "OpenSSL outside the sources of src/serve" rules src/serve/a.h '#include <boost/asio/post.hpp>'
expect "OpenSSL outside the sources of src/serve" rules src/app/a.cpp '#include <openssl/ssl.h>'
expect "OpenSSL outside the sources of tests/serve" rules tests/app/a.cpp '#include <boost/version.hpp>'
expect ok rules src/base/a.cpp '  int a = ceil_div(n, kStep), b = (first + count - 1) / step, c = (n + 1) / 2;'
expect "ceil_div" rules src/base/a.cpp '  int a = (n + kStep - 1) / kStep;'
expect "ceil_div" rules tests/base/a.cpp '  int a = (x.size() + block.rows - 1) / block.rows * block.rows;'
expect "ceil_div" rules src/backend/cuda/a.cuh '  const int a = (bytes + 255) / 256;'
expect "over 800 lines" rules src/base/a.cpp "$(yes '//' | head -801)"
expect "machine path" rules src/base/a.cpp 'auto path = "/home/me/data";'

expect ok kernel_calls src/ops/a.cpp 'ctx.kernels.norm.forward(ctx.stream, {x, f(a, b, c), {1, 2, 3, 4, 5}, y});'
expect ok kernel_calls src/ops/a.cpp 'kernels().norm.forward(stream,\n  {.x = x, .y = y, .a = {1, 2, 3, 4, 5},\n   .z = z, .w = w});'
expect ok kernel_calls src/ops/a.cpp 'make(ctx, {a, b, c, d, e});\n// kernels.norm.forward(stream, {a, b, c, d, e});'
expect "a.cpp:1: forward() has 5 values" kernel_calls src/ops/a.cpp 'ctx.kernels.norm.forward(ctx.stream,\n  {x, f(a, b), y,\n   z, {}});'
expect "sign() has 6 values" kernel_calls tests/ops/a.cpp 'const OptimKernels& optim = kernels.optim;\noptim.sign(stream, SignArgs{a, b, c, d, e, f});'
expect "backward() has 5 values" kernel_calls bench/a.cpp 'run([&] { rig.kernels().norm.backward(rig.stream(), {{a}, b, c, d, e}); });'

# Sources with Boost or OpenSSL, of which there may be three.
rm -rf "${tree:?}"/*
mkdir -p "$tree/src/serve"
for i in 1 2 3; do echo '#include <boost/asio/post.hpp>' >"$tree/src/serve/$i.cpp"; done
"$tools/check_rules.sh" "$tree" >/dev/null || { echo "selftest: check_rules: three sources with Boost fail"; wrong=1; }
echo '#include <openssl/ssl.h>' >"$tree/src/serve/4.cpp"
[[ $("$tools/check_rules.sh" "$tree") == *"over 3 sources with Boost"* ]] ||
  { echo "selftest: check_rules: four sources with Boost or OpenSSL pass"; wrong=1; }

# Tracked files over the limit; those of a tree that git does not know are not counted.
rm -rf "${tree:?}"/*
git -C "$tree" init -q && touch "$tree/large" && git -C "$tree" add large
"$tools/check_size.sh" "$tree" >/dev/null || { echo "selftest: check_size: a small tree fails"; wrong=1; }
truncate -s 35M "$tree/large"
! "$tools/check_size.sh" "$tree" >/dev/null || { echo "selftest: check_size: 35 MiB pass"; wrong=1; }

exit "$wrong"
