// Which samples of a dataset the data-parallel ranks read, by the number of samples consumed: the
// orders of Megatron's samplers. No order has a state, so a run may go on from any position.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace bev {

// Consecutive samples, or a new permutation of all of them in every epoch.
enum class OrderKind : std::uint8_t { kSingle, kCyclic };

struct SampleOrderSpec {
  OrderKind kind = OrderKind::kSingle;
  std::int64_t num_samples = 0;  // of the dataset; only a cyclic order looks at it
  std::int64_t micro_batch_size = 1;
  std::int64_t data_parallel_size = 1;
  // Of a cyclic order: each rank permutes its own share of the samples, the same one in every
  // epoch; else all ranks share one permutation.
  bool data_sharding = true;
};

class SampleOrder {
 public:
  // Error(kConfig) when a cyclic order has no samples for one block.
  explicit SampleOrder(const SampleOrderSpec& spec);
  ~SampleOrder();
  SampleOrder(const SampleOrder&) = delete;
  SampleOrder& operator=(const SampleOrder&) = delete;

  // Fills in the samples of the micro-batch that `rank` takes from the block of micro_batch_size *
  // data_parallel_size samples at `consumed_samples`. A cyclic order is cut into such blocks from
  // the start of each epoch: Error(kConfig) at other places. Safe from several threads.
  void micro_batch(std::int64_t consumed_samples, std::int64_t rank,
                   std::span<std::int64_t> samples) const;

 private:
  struct Permutations;  // of the epochs that are being read

  SampleOrderSpec spec_;
  std::int64_t epoch_samples_ = 0;  // whole blocks of an epoch; the rest is left out
  std::unique_ptr<Permutations> permutations_;
};

}  // namespace bev
