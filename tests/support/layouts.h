// Small models and layouts that tests compare with a single rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/base_quantization.h"
#include "models/config.h"
#include "models/fp8_config.h"
#include "parallel/config.h"
#include "tensor/dtype.h"
#include "verify/layout_check.h"

namespace bev::test {

ModelConfig tiny_gpt();
ModelConfig tiny_llama();
// Latent attention (MLA) with YaRN; value heads smaller than key heads.
ModelConfig tiny_deepseek();
// Attention sinks, a sliding window in every other layer, biases, a clamped gate.
ModelConfig tiny_gpt_oss();
// Experts in every layer, with load-balancing losses.
ModelConfig mixtral_like();
// MLA, dense first layers, group-limited routing, sigmoid scores with an expert bias, a shared
// expert, one MTP depth (its layer is like the last, dense).
ModelConfig deepseek_like();
// Attention sinks, clamped gates, expert biases; in the MTP layers too.
ModelConfig gpt_oss_like();
// Dropout and an odd vocabulary, for everything that can be sharded unevenly. Five layers divide by
// no pipeline size; heads divide by all.
ModelConfig uneven_gpt();
// Two key-value heads shared by four tensor-parallel ranks; nine layers, so that the deepest
// pipelines have two on some stage; sliding windows in some layers.
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
  const Kernels* kernels = nullptr;  // null: CPU
  bool deterministic = false;
  bool max_attention_logit = false;  // steps report it
  Fp8Config fp8;
  BaseQuantization base;
  ParamGroupConfig groups;
  OptimConfig optim;  // its groups are those above
  LearningRates lr = 1e-2;
  const Objective* objective = nullptr;  // null: NextToken
  std::vector<MetricSpec> metrics = {};  // in addition to the engine's
  std::unique_ptr<BatchPreparation> (*preparation)(RankModel& trained) = nullptr;
  StepSamples (*samples)(std::uint64_t seed) = nullptr;  // samples of a step; null: random_samples
};
LayoutAnswer run_tiny(const TinyRun& run);

// Metrics that every such run reports.
inline constexpr const char *kParamsNorm = "params norm", *kNumZeros = "num zeros";

// Statistics logged by the run that disagree with the tensors of the answer: zeros in the first
// gradient, and the norm of the last weights, within the precision of their dtype. Empty: none.
std::string wrong_numbers(const LayoutAnswer& answer, double tolerance);

// Relative to each tensor's largest value; see largest_difference() for the floor.
struct AnswerTolerance {
  double gradients = 1e-11;  // also for the first loss and gradient norm
  double weights = 1e-9;     // also for later losses and norms; 0: not compared
  double floor = 0;
};
// Differences of two answers beyond the tolerance, as text; empty: none.
std::string answer_difference(const LayoutAnswer& expected, const LayoutAnswer& actual,
                              const AnswerTolerance& tolerance = {});

}  // namespace bev::test
