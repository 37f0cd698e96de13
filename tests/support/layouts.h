// Runs a small model under a layout on thread ranks and collects losses, gradients and weights
// under their global names, so that layouts can be compared.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/batch.h"
#include "models/config.h"
#include "parallel/config.h"
#include "tensor/dtype.h"

namespace bev::test {

ModelConfig tiny_gpt();
ModelConfig tiny_llama();
// Samples with documents of unequal length and some ignored targets; deterministic.
std::vector<TokenSample> random_samples(const ModelConfig& model, std::int64_t count,
                                        std::int64_t length, std::uint64_t seed);

struct LayoutRun {
  ModelConfig model;
  ParallelConfig parallel;
  Dtype dtype = Dtype::kF64;
  std::int64_t steps = 3;
  std::int64_t micro_batch_size = 1;
  std::int64_t global_batch_size = 4;
  std::int64_t threads = 1;
  std::int64_t sequence_length = 11;
};

struct LayoutOutcome {
  std::vector<double> losses, grad_norms;
  std::map<std::string, std::vector<double>> gradients;  // of the first step
  std::map<std::string, std::vector<double>> weights;    // after the last
};
LayoutOutcome run_layout(const LayoutRun& run);

// Largest difference of two tensors relative to the largest value of the first; names the worst.
struct Difference {
  double value = 0;
  std::string name;
};
Difference largest_difference(const std::map<std::string, std::vector<double>>& expected,
                              const std::map<std::string, std::vector<double>>& actual);

}  // namespace bev::test
