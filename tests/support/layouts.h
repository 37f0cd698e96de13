// Small models and layouts that tests compare with one rank.
#pragma once

#include <cstdint>

#include "models/config.h"
#include "parallel/config.h"
#include "tensor/dtype.h"
#include "train/layout_check.h"

namespace bev::test {

ModelConfig tiny_gpt();
ModelConfig tiny_llama();

struct TinyRun {
  ModelConfig model;
  ParallelConfig parallel;
  Dtype dtype = Dtype::kF64;
  std::int64_t steps = 3;
  std::int64_t micro_batch_size = 1;
  std::int64_t global_batch_size = 4;
  std::int64_t threads = 1;
  std::int64_t sequence_length = 11;
};
LayoutAnswer run_tiny(const TinyRun& run);

}  // namespace bev::test
