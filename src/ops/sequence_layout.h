// The tokens of a micro-batch on this rank: the sequences they form and the position of each.
// Activations are [T, H]; batch and sequence dims exist only inside attention.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/context.h"
#include "ops/token_set.h"
#include "tensor/random_rows.h"

namespace bev {

// Tokens of each rank of a group inside attention, after neighbouring context-parallel ranks have
// traded heads for tokens (Ulysses).
struct ContextRows {
  std::vector<TokenSet> sets;        // one per member of the group that shares the keys
  Tensor samples, sample_positions;  // as in SequenceLayout, for the rows of this rank's set
};

// Rows of one sequence, and the length of the whole sequence.
struct SequenceRows {
  std::int64_t begin = 0, end = 0, length = 0;
  bool operator==(const SequenceRows&) const = default;
};

// Host description of the rows of this rank, sequence after sequence.
struct SequenceLayout {
  std::int64_t tokens = 0;              // T
  TokenSet own;                         // which tokens of the samples the rows are
  std::int64_t max_length = 0;          // length of the longest sequence
  std::vector<SequenceRows> sequences;  // sequence of each row
  // Attention of a rank that has all tokens of the sequences: one run per document.
  std::vector<AttentionRun> runs;
  Tensor positions;         // [T] i32, within the document
  Tensor samples;           // [T] i32, index of the sample in the global batch (Philox counter)
  Tensor sample_positions;  // [T] i32, within the sample (Philox counter)
  Tensor batch_samples;     // [T] i32, index of the sample in the micro-batch
  Tensor first_rows;        // [samples] i32, row of the first token; -1: on another rank
  std::int64_t sample_count = 0;

  // T of each rank that shares experts with this rank.
  std::vector<std::int64_t> expert_tokens;

  // With context parallelism: rows inside attention if heads are exchanged by no ranks (ring),
  // within the inner group (mixed), or by all (heads).
  ContextRows ring, mixed, heads;
  const TokenSet& all_tokens() const { return heads.sets.front(); }

  // This rank's part of consecutive samples. `first_sample` is the index of the first one in the
  // global batch.
  static SequenceLayout make(Context& ctx, std::span<const SampleShape> samples,
                             std::int64_t first_sample);
};

// Placement of a tensor [T, ...] with one row per token: dp and cp ranks have different tokens.
Placement batch_placement();

// Rows of a [T, ...] tensor that x holds: all, or this rank's part under sequence parallelism.
Range token_rows(const Context& ctx, const SequenceLayout& layout, const Placement& x);

// All-gathers the rows x of a [T, ...] tensor from all ranks that share its micro-batch, in the
// order of cp ranks. Waits for completion.
Tensor gather_micro_batch(Context& ctx, const Tensor& x, const Placement& placement,
                          const SequenceLayout& layout, const char* label);

// Copies between rows grouped by set and the rows of all sets in sample order.
void copy_into_order(Context& ctx, std::span<const TokenSet> sets, const TokenSet& together,
                     const Tensor& apart, const Tensor& ordered);
void copy_out_of_order(Context& ctx, std::span<const TokenSet> sets, const TokenSet& together,
                       const Tensor& ordered, const Tensor& apart);

// Philox counters for the rows of a tensor placed like x.
RandomRows random_rows(const Context& ctx, const SequenceLayout& layout, const Placement& x,
                       RandomUse use, std::int64_t head = 0);

}  // namespace bev
