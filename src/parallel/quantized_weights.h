// Weights of FP8 layers in their 8-bit forms. They are made at the first use after the values have
// changed, which is once per step, and stay where they are in memory: recorded steps know it. Of
// weights that are gathered for use (optim_grads_params) only those of one unit are kept.
#pragma once

#include <vector>

#include "autograd/param.h"
#include "parallel/shard_plan.h"

namespace bev {

class QuantizedWeights {
 public:
  QuantizedWeights(const ShardPlan& plan, const StoreTools& tools, bool keep_all)
      : plan_(plan), tools_(tools), keep_all_(keep_all), entries_(plan.params().size()) {}

  // `value` is the whole local parameter. Collective over tp where a scale is of a tensor that tp
  // cuts.
  Quantized use(const Param& param, const View& value, const AmaxSlot& slot);
  // The values are about to change, or have.
  void expire();

 private:
  struct Entry {
    Quantized value;
    Tensor amax;
    bool fresh = false;
  };
  const ShardPlan& plan_;
  const StoreTools& tools_;
  bool keep_all_;
  int unit_ = -1;  // whose weights are kept, where not all are
  std::vector<Entry> entries_;
};

}  // namespace bev
