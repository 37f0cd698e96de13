// All-gathered weights of ZeRO-3 (FSDP, optim_grads_params): every rank stores its shard of each
// FSDP unit, and all-gathers the whole unit while it is used. One unit is current; with overlap the
// next one is prefetched:
//
//   use(layer 1)   [layer 1]  <- layer 2 is being gathered
//   use(layer 2)   layer 1 is freed, [layer 2]  <- layer 3
//
// The prefetch predicts the unit that came next in the previous step. A misprediction costs time
// only. Predictions depend on the order of uses alone, which is the same on all ranks of the group.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "autograd/param.h"
#include "parallel/store/shard_plan.h"

namespace bev {

class FsdpUnitCache {
 public:
  FsdpUnitCache(const ShardPlan& plan, const StoreTools& tools, const FlatBuffer& values)
      : plan_(plan), tools_(tools), values_(values) {}

  // A whole weight. Collective over the shards unless its unit is current. The memory lives as long
  // as the lease, even if another unit becomes current.
  WeightLease use(const Param& param);

  // Uses between these calls are recorded and predicted.
  void begin_step();
  void end_step();
  // Frees all gathered units: the values are about to change, or have changed.
  void clear();
  // From hold() to release() every unit that is used stays gathered, and is gathered once: for
  // phases in which no value changes.
  void hold() { holds_ = true; }
  void release();

 private:
  // One bucket of a unit: its trained or its frozen parameters.
  struct GatheredBucket {
    int bucket = -1;
    Tensor whole;
    // If FP8 payloads of the bucket are gathered elsewhere: its other weights, in order.
    std::vector<Tensor> weights;
  };
  struct Gathered {
    int unit = -1;  // index of the bucket group; -1: none
    std::vector<GatheredBucket> buckets;
    std::vector<Work> works;

    void wait() {
      for (Work& work : works) work.wait();
    }
  };
  Gathered gather(int unit) const;
  GatheredBucket gather_bucket(int bucket, std::vector<Work>& works) const;
  const Gathered& gathered(int unit);
  const Gathered& held(int unit);
  void make_current(int unit);
  // Starts the all-gather of the unit that is expected next, if there is one.
  void prefetch_next();
  std::optional<int> predicted_next() const;

  const ShardPlan& plan_;
  const StoreTools& tools_;
  const FlatBuffer& values_;
  Gathered current_, prefetched_;
  bool holds_ = false;
  std::vector<Gathered> held_;
  bool in_step_ = false;
  std::vector<int> trace_, last_trace_;  // units in the order they became current
};

}  // namespace bev
