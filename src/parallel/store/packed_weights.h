// Cache of weights in the packed layout that the backend's GEMMs read (PackedOperand), valid until
// the weights change: for the micro-batches of a step, and for evaluation with the same weights.
// Forward and dgrad use two different layouts, so a step of one micro-batch, which would use each
// once, caches only weights that it uses several times. Weights that are gathered on use
// (optim_grads_params) are not cached.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "autograd/param.h"
#include "parallel/store/shard_plan.h"
#include "tensor/packed_operand.h"

namespace bev {

class PackedWeights {
 public:
  PackedWeights(const ShardPlan& plan, const StoreTools& tools)
      : plan_(plan), tools_(tools), entries_(plan.params().size()) {}

  void begin_step(std::int64_t micro_batches) { micro_batches_ = micro_batches; }
  // Returns null if the GEMM has no packed layout, or if it would not be used again.
  PackedOperand* use(const Param& param, const GemmArgs& gemm, std::int64_t uses);
  // Drops all packed weights: the weights are about to change, or have changed.
  void expire();

 private:
  struct Entry {
    Tensor memory;
    PackedOperand factor;
  };

  const ShardPlan& plan_;
  const StoreTools& tools_;
  std::int64_t micro_batches_ = 1;
  std::vector<std::array<Entry, 2>> entries_;  // by parameter, then by transpose_b
};

}  // namespace bev
