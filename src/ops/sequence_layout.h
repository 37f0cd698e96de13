// The tokens of a micro-batch on this rank: which sequences they form, where each stands.
// Activations are [T, H] beside it; batch and sequence dims exist only inside attention.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/context.h"
#include "ops/token_set.h"
#include "tensor/random_rows.h"

namespace bev {

// What the ranks of a group hold inside of attention, after neighbouring context-parallel ranks
// exchanged heads for tokens.
struct ContextRows {
  std::vector<TokenSet> sets;        // of every member of the group that shares the keys
  Tensor samples, sample_positions;  // as below, of the rows of this rank's set
};

// Rows of one sequence, with its whole length.
struct SequenceRows {
  std::int64_t begin = 0, end = 0, length = 0;
  bool operator==(const SequenceRows&) const = default;
};

// Host description of rows that are laid out one after the other.
struct SequenceLayout {
  std::int64_t tokens = 0;              // T
  TokenSet own;                         // which tokens of the samples they are
  std::int64_t max_length = 0;          // of the longest sequence
  std::vector<SequenceRows> sequences;  // what each row belongs to
  // What attends to what where a rank has all tokens of the sequences: one per document.
  std::vector<AttentionRun> runs;
  Tensor positions;         // [T] i32, within the document
  Tensor samples;           // [T] i32, index of the sample in the global batch
  Tensor sample_positions;  // [T] i32, within the sample (random numbers)
  Tensor batch_samples;     // [T] i32, index of the sample in the micro-batch
  std::int64_t sample_count = 0;

  // T of each rank that shares experts with this one.
  std::vector<std::int64_t> expert_tokens;

  // With context parallelism: the rows inside of attention when no ranks, those of the inner group,
  // or all exchange heads.
  ContextRows ring, mixed, heads;
  const TokenSet& all_tokens() const { return heads.sets.front(); }

  // This rank's part of samples one after the other. `first_sample` is the index of the first one
  // in the global batch.
  static SequenceLayout make(Context& ctx, std::span<const SampleShape> samples,
                             std::int64_t first_sample);
};

// Of a tensor [T, ...] with a row for each token: ranks of dp and cp have tokens of their own.
Placement batch_placement();

// The rows of a [T, ...] tensor that x holds: all of them, or this rank's part under sequence
// parallelism.
Range token_rows(const Context& ctx, const SequenceLayout& layout, const Placement& x);

// The rows of all ranks that share the micro-batch of x, which holds its own of a [T, ...] tensor:
// one rank's of cp after the other's. Waits for them.
Tensor gather_micro_batch(Context& ctx, const Tensor& x, const Placement& placement,
                          const SequenceLayout& layout, const char* label);

// Between rows of several sets, one set after the other, and the rows of all of them in order.
void copy_into_order(Context& ctx, std::span<const TokenSet> sets, const TokenSet& together,
                     const Tensor& apart, const Tensor& ordered);
void copy_out_of_order(Context& ctx, std::span<const TokenSet> sets, const TokenSet& together,
                       const Tensor& ordered, const Tensor& apart);

// Random numbers for the rows of a tensor placed like x.
RandomRows random_rows(const Context& ctx, const SequenceLayout& layout, const Placement& x,
                       RandomUse use);

}  // namespace bev
