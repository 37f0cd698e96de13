// Cross entropy over a chunk of logits. Where they are cut over the vocabulary: three passes with a
// reduction over the tensor-parallel group between them, so that any split gives the same loss.
#pragma once

#include <cstdint>

#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// One chunk. logits [t, V_local] in the accumulate type (on CUDA also bf16 or f16, with statistics
// in f32); they cover vocabulary rows from first_row on. A row may be padded: what follows its
// logits is not read, and left with no meaning.
struct LossChunk {
  View logits;
  const std::int32_t* targets = nullptr;  // [t] global ids; negative: ignored
  std::int64_t first_row = 0;
  double logit_scale = 1;          // above 0
  double softcap = 0;              // 0: none
  std::int64_t logits_in_row = 0;  // V_local; 0: rows are not padded

  std::int64_t columns() const { return logits_in_row > 0 ? logits_in_row : logits.shape[1]; }
};

// logits become z = softcap * tanh(logit_scale * logits / softcap) (or logit_scale * logits);
// row_max [t] = max of the row (-infinity for no columns).
struct LossMaxArgs {
  LossChunk chunk;
  View row_max;
};

// stats [2, t]: sum over the row of exp(z - row_max), and z of the target if it lies here, else 0.
struct LossSumArgs {
  LossChunk chunk;
  View row_max, stats;
};

// token_loss [t] = log(sum) + row_max - z_target (0 where ignored). When with_gradient: logits are
// overwritten with d(*loss_factor * sum_t weights[t] token_loss[t]) / d(raw logits).
struct LossGradArgs {
  LossChunk chunk;
  View row_max, stats;
  View weights = {};                    // [t] f32, or f64 where the logits are
  const double* loss_factor = nullptr;  // device; null: 1
  View token_loss;
  bool with_gradient = false;
};

// All of the above for a chunk that covers the whole vocabulary, in one reading of the logits,
// which are left with no meaning where no gradient is wanted.
struct LossWholeArgs {
  LossChunk chunk;
  View weights = {};                    // [t] f32, or f64 where the logits are
  const double* loss_factor = nullptr;  // device; null: 1
  View token_loss;
  bool with_gradient = false;
};

// *total (f64, device) += the sum of weights[t] * token_loss[t], in an order that depends on the
// length only.
struct LossTotalArgs {
  View token_loss;
  const float* weights = nullptr;
  double* total = nullptr;
};

// What a row of logits says by itself. log_sum is the log of the sum of exp(z - largest), and not
// finite where a logit is NaN or +infinity or none is finite.
struct RowSummary {
  double largest = 0, log_sum = 0;
  std::int64_t at = 0;  // of the largest, the first among equals
};
// rows [t] for logits [t, V] in the accumulate type.
struct RowSummaryArgs {
  View logits;
  RowSummary* rows = nullptr;
};

// How a token is drawn from a row; infer/sampler.h tells what the numbers mean.
struct SampleRule {
  double temperature = 1;  // above 0
  std::int64_t top_k = 0;
  double top_p = 1;
};
struct SampledToken {
  std::int64_t token = -1;  // -1: so many are alike that the host must look
  double logit = 0;         // of the token
};
// tokens [t] for logits [t, V] in f32, their summaries, and a random number in (0, 1) for each row;
// all on the device.
struct SampleArgs {
  View logits;
  const RowSummary* rows = nullptr;
  const double* fractions = nullptr;
  SampleRule rule;
  SampledToken* tokens = nullptr;
};

// The logits that a device computes at a time.
struct LogitsRule {
  // Those of one chunk stay near the cache, yet the weight is not read too often.
  std::int64_t chunk_bytes = std::int64_t{64} << 20;
  bool narrow = false;  // in the model's dtype, not in the accumulate type
  // Rows are padded to as many elements: products of rows that lie anywhere are slow.
  std::int64_t row_multiple = 1;
};

struct LossKernels {
  void (*row_max)(const Stream&, const LossMaxArgs&);
  void (*row_sum)(const Stream&, const LossSumArgs&);
  void (*gradient)(const Stream&, const LossGradArgs&);
  void (*whole)(const Stream&, const LossWholeArgs&);
  void (*total)(const Stream&, const LossTotalArgs&);
  void (*summary)(const Stream&, const RowSummaryArgs&);
  // The choices of infer/sampler.h, but for sums that are rounded in other places. False where the
  // rule is not served. Null where the host has the logits at hand.
  bool (*sample)(const Stream&, const SampleArgs&);
  LogitsRule logits = {};
};

}  // namespace bev
