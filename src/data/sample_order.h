// Sampler: which samples the data-parallel ranks read, as a function of the number of consumed
// samples; equal to Megatron's samplers. It is stateless, so a run may resume at any position.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace bev {

// Sequential samples, or a new permutation of all samples in every epoch.
enum class OrderKind : std::uint8_t { kSingle, kCyclic };

struct SampleOrderSpec {
  OrderKind kind = OrderKind::kSingle;
  std::int64_t num_samples = 0;  // size of the dataset; used by the cyclic order only
  std::int64_t micro_batch_size = 1;
  std::int64_t data_parallel_size = 1;
  // Cyclic order: each rank permutes its own fixed share of the samples; otherwise all ranks share
  // one permutation.
  bool data_sharding = true;
};

class SampleOrder {
 public:
  // Throws Error(kConfig) if a cyclic order has fewer samples than one block.
  explicit SampleOrder(const SampleOrderSpec& spec);
  ~SampleOrder();
  SampleOrder(const SampleOrder&) = delete;
  SampleOrder& operator=(const SampleOrder&) = delete;

  // Fills in the sample indices of rank's micro-batch in the block of micro_batch_size *
  // data_parallel_size samples at `consumed_samples`. A cyclic order consists of such blocks from
  // the start of each epoch; any other position throws Error(kConfig). Thread safe.
  void micro_batch(std::int64_t consumed_samples, std::int64_t rank,
                   std::span<std::int64_t> samples) const;

 private:
  struct Permutations;  // permutations of the epochs in use

  SampleOrderSpec spec_;
  std::int64_t epoch_samples_ = 0;  // whole blocks per epoch; the remainder is dropped
  std::unique_ptr<Permutations> permutations_;
};

}  // namespace bev
