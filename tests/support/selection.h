// Tokens selected from a row of logits by the CPU's kernel, as a reference.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/cpu_kernels.h"
#include "base/thread_pool.h"
#include "infer/sampler.h"
#include "kernels/kernels.h"
#include "kernels/sampling.h"

namespace bev::test {

inline std::int32_t select_token(std::vector<double> logits, const SamplingRule& rule) {
  static ThreadPool pool(1);
  Stream stream;
  stream.pool = &pool;
  std::int32_t token = -1, status = 0;
  View row{logits.data(), Dtype::kF64, {1, static_cast<std::int64_t>(logits.size())}};
  cpu_kernels().sampling.select(
      stream, {.logits = row, .rules = &rule, .tokens = &token, .status = &status});
  return status == 0 ? token : -1;
}

}  // namespace bev::test
