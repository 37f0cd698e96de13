// Dynamic context parallelism: which ranks share which sequences of a global batch. Long sequences
// are shared by blocks of 2, 4, .. adjacent ranks, short ones are packed onto single ranks, so that
// no micro-batch has more tokens than a rank may hold and all ranks have near equal attention
// FLOPs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace bev {

struct SequenceLimits {
  std::int64_t ranks = 1;       // that may share a sequence: a power of two
  std::int64_t max_tokens = 0;  // of a micro-batch, on each rank
};

// A micro-batch of the ranks [block * 2^power, (block + 1) * 2^power), which share its sequences.
struct SequencePack {
  int power = 0;
  std::int64_t block = 0;
  std::vector<std::size_t> sequences = {};

  bool holds(std::int64_t rank) const { return rank >> power == block; }
};

struct SequenceSchedule {
  // Larger blocks first: ranks that share a pack have had the same packs before it.
  std::vector<SequencePack> packs;
  std::int64_t micro_batches = 0;  // the most packs of a rank
};

// The least power of two of ranks that hold a sequence.
int least_power(std::int64_t length, std::int64_t max_tokens);
// Throws Error(kInput) if a sequence does not fit all ranks together.
SequenceSchedule schedule_sequences(std::span<const std::int64_t> lengths,
                                    const SequenceLimits& limits);

// Pairs of a query and a key that it sees under a causal mask, by rank: what attention FLOPs are
// proportional to.
std::vector<double> attention_pairs(const SequenceSchedule& schedule,
                                    std::span<const std::int64_t> lengths, std::int64_t ranks);
// The same if sequence i belongs to data-parallel rank i % dp, whose cp ranks share it.
std::vector<double> fixed_attention_pairs(std::span<const std::int64_t> lengths, std::int64_t cp,
                                          std::int64_t dp);
// The largest over the mean.
double imbalance(std::span<const double> loads);

}  // namespace bev
