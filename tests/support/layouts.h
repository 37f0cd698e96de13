// Small models and layouts that tests compare with one rank.
#pragma once

#include <cstdint>
#include <string>

#include "models/config.h"
#include "models/fp8_config.h"
#include "parallel/config.h"
#include "tensor/dtype.h"
#include "train/layout_check.h"

namespace bev::test {

ModelConfig tiny_gpt();
ModelConfig tiny_llama();
// Latent attention with yarn; values smaller than keys.
ModelConfig tiny_deepseek();
// Learned sinks, windows in every other layer, biases, a gate with limits.
ModelConfig tiny_gpt_oss();
// With experts in every layer, and losses on the choice.
ModelConfig mixtral_like();
// Latents, dense layers, groups, sigmoids with a bias that follows the load, an expert for all
// tokens, a depth of multi-token prediction (its layer is like the last, dense).
ModelConfig deepseek_like();
// Sinks, limited gates, biases of experts; in multi-token prediction too.
ModelConfig gpt_oss_like();
// With dropout and odd vocabularies, for anything that can be cut unevenly.
// Five layers divide by no pipeline; heads by everything.
ModelConfig uneven_gpt();
// Two key-value heads, which four tensor-parallel ranks share; nine layers, so that the deepest
// pipelines have two each somewhere; windows in some.
ModelConfig uneven_llama();

struct TinyRun {
  ModelConfig model;
  ParallelConfig parallel;
  Dtype dtype = Dtype::kF64;
  std::int64_t steps = 3;
  std::int64_t micro_batch_size = 1;
  std::int64_t global_batch_size = 4;
  std::int64_t threads = 1;
  std::int64_t sequence_length = 11;
  WorldFilter* filter = nullptr;
  double timeout_seconds = 60;
  const Kernels* kernels = nullptr;  // the CPU's
  bool deterministic = false;
  Fp8Config fp8;
  const Objective* objective = nullptr;  // NextToken
  std::unique_ptr<BatchPreparation> (*preparation)(RankModel& trained) = nullptr;
  StepSamples (*samples)(std::uint64_t seed) = nullptr;  // of a step; random_samples
};
LayoutAnswer run_tiny(const TinyRun& run);

// What the steps of such a run said of the whole model, where it is not so of the tensors that the
// answer holds: zeros of the first gradient, and the norm of the last weights, as far as their
// dtype tells it. Empty: all is.
std::string wrong_numbers(const LayoutAnswer& answer, double tolerance);

// Relative to each tensor's largest value; see largest_difference() for the floor.
struct AnswerTolerance {
  double gradients = 1e-11;  // also of the first loss and gradient norm
  double weights = 1e-9;     // also of later ones, and of reports; 0: not compared
  double floor = 0;
};
// What separates two answers beyond the tolerance, as text; empty: nothing.
std::string answer_difference(const LayoutAnswer& expected, const LayoutAnswer& actual,
                              const AnswerTolerance& tolerance = {});

}  // namespace bev::test
