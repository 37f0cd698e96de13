// Cross entropy over a chunk of logits. A vocabulary-parallel loss takes three
// passes with a tensor-parallel all-reduce after each of the first two, so that any split gives the
// same loss.
#pragma once

#include <cstdint>

#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// One chunk of tokens. logits [t, V_local] in the accumulate type (on CUDA also bf16 or f16, with
// statistics in f32) cover vocabulary rows from first_row on. Rows may be padded: padding is not
// read, and its contents are undefined afterwards.
struct LossChunk {
  View logits;
  const std::int32_t* targets = nullptr;  // [t] global ids; negative: ignored
  std::int64_t first_row = 0;
  double logit_scale = 1;          // above 0
  double softcap = 0;              // 0: none
  std::int64_t logits_in_row = 0;  // V_local; 0: rows are not padded

  std::int64_t columns() const { return logits_in_row > 0 ? logits_in_row : logits.shape[1]; }
};

// Replaces logits by z = softcap * tanh(logit_scale * logits / softcap), or logit_scale * logits
// without a softcap; row_max [t] = max of the row (-infinity if it has no columns).
struct LossMaxArgs {
  LossChunk chunk;
  View row_max;
};

// stats [2, t]: the sum over the row of exp(z - row_max); z of the target if it is in this shard,
// else 0.
struct LossSumArgs {
  LossChunk chunk;
  View row_max, stats;
};

// token_loss [t] = log(sum) + row_max - z_target (0 where ignored). If with_gradient, logits are
// overwritten with d(*loss_factor * sum_t weights[t] token_loss[t]) / d(raw logits).
struct LossGradArgs {
  LossChunk chunk;
  View row_max, stats;
  View weights = {};                    // [t] f32, or f64 where the logits are
  const double* loss_factor = nullptr;  // device; null: 1
  View token_loss;
  bool with_gradient = false;
};

// All three passes for a chunk that covers the whole vocabulary, reading the logits from memory
// once. Without with_gradient the contents of logits are undefined afterwards.
struct LossWholeArgs {
  LossChunk chunk;
  View weights = {};                    // [t] f32, or f64 where the logits are
  const double* loss_factor = nullptr;  // device; null: 1
  View token_loss;
  bool with_gradient = false;
};

// *total (f64, device) += sum of weights[t] * token_loss[t], in an order that depends only on the
// length.
struct LossTotalArgs {
  View token_loss;
  const float* weights = nullptr;
  double* total = nullptr;
};

// How large a chunk of logits the device computes at a time, and in which layout.
struct LogitsRule {
  // Small enough for one chunk to stay near the cache, large enough not to reread the weight often.
  std::int64_t chunk_bytes = std::int64_t{64} << 20;
  bool narrow = false;  // logits in the dtype of the model, not in the accumulate type
  // Rows are padded to a multiple of this many elements: GEMMs on unaligned rows are slow.
  std::int64_t row_multiple = 1;
};

struct LossKernels {
  void (*row_max)(const Stream&, const LossMaxArgs&);
  void (*row_sum)(const Stream&, const LossSumArgs&);
  void (*gradient)(const Stream&, const LossGradArgs&);
  void (*whole)(const Stream&, const LossWholeArgs&);
  void (*total)(const Stream&, const LossTotalArgs&);
  LogitsRule logits = {};
};

}  // namespace bev
