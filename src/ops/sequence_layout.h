// The tokens of a micro-batch on this rank: which sequences they form, where each stands.
// Activations are [T, H] beside it; batch and sequence dims exist only inside attention.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/context.h"

namespace bev {

// Host description of rows that are laid out one after the other.
struct SequenceLayout {
  std::int64_t tokens = 0;         // T
  std::int64_t max_length = 0;     // of the longest sequence, for rope scaling by length
  std::vector<AttentionRun> runs;  // what attends to what: one per document
  Tensor positions;                // [T] i32, within the document
  Tensor samples;                  // [T] i32, index of the sample in the global batch
  Tensor sample_positions;         // [T] i32, within the sample (random numbers)

  // From samples one after the other; each is cut into documents. `first_sample` is the index of
  // the first one in the global batch.
  struct Sample {
    std::vector<std::int32_t> documents;  // lengths, adding up to the sample's tokens
  };
  static SequenceLayout make(Context& ctx, std::span<const Sample> samples,
                             std::int64_t first_sample);
};

// The rows of a [T, ...] tensor that x holds: all of them, or this rank's part under sequence
// parallelism.
Range token_rows(const Context& ctx, const SequenceLayout& layout, const Placement& x);

// Random numbers for the rows of a tensor placed like x.
RandomRows random_rows(const Context& ctx, const SequenceLayout& layout, const Placement& x,
                       RandomUse use);

}  // namespace bev
