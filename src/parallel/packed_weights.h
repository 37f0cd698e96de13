// Weights in the form in which the device's products take them (PackedFactor), kept until the
// values change: for the micro-batches of a step and what is evaluated with the same weights.
// Forward and input gradient take two different forms, so a step of one micro-batch, which would
// use each form once, keeps only those of weights that it uses several times. Weights that are
// gathered for use (optim_grads_params) have none.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "autograd/param.h"
#include "parallel/shard_plan.h"
#include "tensor/packed_factor.h"

namespace bev {

class PackedWeights {
 public:
  PackedWeights(const ShardPlan& plan, const StoreTools& tools)
      : plan_(plan), tools_(tools), entries_(plan.params().size()) {}

  void begin_step(std::int64_t micro_batches) { micro_batches_ = micro_batches; }
  // Null where the product has no such form, or it would not be used again.
  PackedFactor* use(const Param& param, const GemmArgs& product, std::int64_t uses);
  // The values are about to change, or have.
  void expire();

 private:
  struct Entry {
    Tensor memory;
    PackedFactor factor;
  };

  const ShardPlan& plan_;
  const StoreTools& tools_;
  std::int64_t micro_batches_ = 1;
  std::vector<std::array<Entry, 2>> entries_;  // by parameter, then by transpose_b
};

}  // namespace bev
