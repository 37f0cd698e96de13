// Gradients of ZeRO-0 and ZeRO-1 (no_shard, optim): accumulated whole over the micro-batches of a
// step, then reduced over ranks bucket by bucket, once per step.
#pragma once

#include "parallel/store/gradient_sums.h"

namespace bev {

class WholeGradients final : public GradientSums {
 public:
  WholeGradients(const ShardPlan& plan, const StoreTools& tools) : GradientSums(plan, tools, true) {
    begin_step(0);
  }

  void begin_step(std::int64_t micro_batches) override;
  void done(const Param& param) override;
  void pause() override { finish_all(sums_); }

 private:
  struct Slot {
    bool fresh = true;         // no gradient yet in this step
    std::int64_t missing = 0;  // gradients still to come
  };
  struct Bucket {
    int incomplete = 0;  // parameters whose gradients are still to come
    bool posted = false;
  };
  GradSink open_sink(const Param& param) override;
  void reduce() override;
  void post(int bucket);
  Slot& slot(const Param& param) { return slots_[static_cast<std::size_t>(param.index)]; }
  Bucket& bucket(int index) { return buckets_[static_cast<std::size_t>(index)]; }

  std::vector<Slot> slots_;  // by parameter
  std::vector<Bucket> buckets_;
  std::vector<PostedSum> sums_;  // of buckets, in the order they were posted
};

}  // namespace bev
