// FP8 forms of weights. They are computed at the first use after the values have changed, once per
// step, at fixed addresses, so that CUDA graphs can read them. If weights are gathered on use
// (optim_grads_params), only the FP8 weights of one FSDP unit are kept, and they are quantised
// again at its next use.
//
// With --fp8-param-gather the FP8 payloads are all-gathered instead of the values. Each rank
// quantises the shard that it has updated, with the scale of the whole tensor:
//
//   rank 0  values [0, n/2)  -> payload [0, n/2) --.
//                                                   all-gather -> rows -> columns
//   rank 1  values [n/2, n)  -> payload [n/2, n) --'
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/param.h"
#include "parallel/store/amax_history.h"
#include "parallel/store/shard_plan.h"

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

  // `value` is the whole local parameter; it is not read if payloads are gathered. Collective over
  // tp if a tensor that tp splits has one scale, and over the shards if payloads are gathered.
  Quantized use(const Param& param, const View& value);
  // Drops all FP8 weights: the values are about to change, or have changed.
  void expire();

 private:
  struct Entry {
    Quantized value;
    Tensor amax, piece;
    Work gathering;  // all-gather of the pieces
    bool started = false, fresh = false;
  };
  Entry& entry(const Param& param) { return entries_[static_cast<std::size_t>(param.index)]; }
  void quantize_whole(const Param& param, const View& value);
  // Starts the all-gathers of all weights, or of one FSDP unit.
  void start_gathers(int unit);
  void find_amaxes();
  void finish_gathers();
  void start_gather(const Param& param);

  const ShardPlan& plan_;
  const StoreTools& tools_;
  const FlatBuffer& values_;
  const AmaxHistory& amaxes_;
  int unit_ = -1;       // the FSDP unit whose weights are kept, if not all are
  bool found_ = false;  // all_amaxes_ is valid
  Tensor all_amaxes_;   // of gathered weights with tensorwise scales, by index of the parameter
  std::vector<Entry> entries_;
};

}  // namespace bev
