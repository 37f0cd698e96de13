// Weights of FP8 layers in their 8-bit forms. They are made at the first use after the values have
// changed, which is once per step, and stay where they are in memory: recorded steps know it. Of
// weights that are gathered for use (optim_grads_params) only those of one unit are kept, and made
// again when it is used again.
//
// Where payloads are gathered instead of values (--fp8-param-gather), each rank quantises what it
// has updated, with the scale of the whole, and the pieces of all shards make up the rows:
//
//   rank 0  values [0, n/2)  -> payload [0, n/2) --.
//                                                   all-gather -> rows -> columns
//   rank 1  values [n/2, n)  -> payload [n/2, n) --'
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/param.h"
#include "parallel/amax_history.h"
#include "parallel/shard_plan.h"

namespace bev {

class QuantizedWeights {
 public:
  QuantizedWeights(const ShardPlan& plan, const StoreTools& tools, const FlatBuffer& values,
                   const AmaxHistory& amaxes)
      : plan_(plan),
        tools_(tools),
        values_(values),
        amaxes_(amaxes),
        entries_(plan.params().size()) {}

  // `value` is the whole local parameter, not read where payloads are gathered. Collective over tp
  // where a scale is of a tensor that tp cuts, and over the shards where they gather.
  Quantized use(const Param& param, const View& value);
  // The values are about to change, or have.
  void expire();

 private:
  struct Entry {
    Quantized value;
    Tensor amax, piece;
    Work gathering;  // of the pieces
    bool started = false, fresh = false;
  };
  Entry& entry(const Param& param) { return entries_[static_cast<std::size_t>(param.index)]; }
  void quantize_whole(const Param& param, const View& value);
  // All of them at once, or those of one unit.
  void start_gathers(int unit);
  void find_amaxes();
  void finish_gathers();
  void start_gather(const Param& param);

  const ShardPlan& plan_;
  const StoreTools& tools_;
  const FlatBuffer& values_;
  const AmaxHistory& amaxes_;
  int unit_ = -1;       // whose weights are kept, where not all are
  bool found_ = false;  // all_amaxes_
  Tensor all_amaxes_;   // of what is gathered, tensorwise; by index of the parameter
  std::vector<Entry> entries_;
};

}  // namespace bev
