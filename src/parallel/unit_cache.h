// Weights of optim_grads_params (ZeRO-3, FSDP): every rank keeps its part of an FSDP unit, and
// all-gathers the whole unit for the time it is used. One unit is current; with overlap the next
// one is prefetched:
//
//   use(layer 1)   [layer 1]  <- layer 2 is being gathered
//   use(layer 2)   layer 1 is let go, [layer 2]  <- layer 3
//
// The prefetch takes the unit that came next in the step before. A wrong guess costs time only.
// Guesses follow from the order of uses alone, which is the same on all ranks of the group.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "autograd/param.h"
#include "parallel/shard_plan.h"

namespace bev {

class UnitCache {
 public:
  UnitCache(const ShardPlan& plan, const StoreTools& tools, const FlatBuffer& values)
      : plan_(plan), tools_(tools), values_(values) {}

  // A whole weight. Collective over the shards unless its unit is the current one. It stays while
  // the lease does, also when another unit becomes current.
  WeightLease use(const Param& param);

  // Uses between the two are learnt and guessed.
  void begin_step();
  void end_step();
  // Lets go of all that is gathered: the values are about to change, or have.
  void clear();

 private:
  // One bucket of a unit: its trained or its frozen parameters.
  struct GatheredBucket {
    int bucket = -1;
    Tensor whole;
    // Where 8-bit payloads of the bucket are gathered elsewhere: the other weights, in its order.
    std::vector<Tensor> weights;
  };
  struct Gathered {
    int unit = -1;  // the group of buckets; -1: none
    std::vector<GatheredBucket> buckets;
    std::vector<Work> works;

    void wait() {
      for (Work& work : works) work.wait();
    }
  };
  Gathered gather(int unit) const;
  GatheredBucket gather_bucket(int bucket, std::vector<Work>& works) const;
  void become_current(int unit);
  std::optional<int> next() const;

  const ShardPlan& plan_;
  const StoreTools& tools_;
  const FlatBuffer& values_;
  Gathered current_, coming_;
  bool in_step_ = false;
  std::vector<int> trace_, last_trace_;  // units in the order they became current
};

}  // namespace bev
