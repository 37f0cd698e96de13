#include "parallel/quantized_weights.h"

#include "autograd/quantize.h"

namespace bev {

Quantized QuantizedWeights::use(const Param& param, const View& value, const AmaxSlot& slot) {
  int unit = plan_.place(param).bucket;
  if (!keep_all_ && unit != unit_) entries_.assign(entries_.size(), Entry());
  unit_ = unit;
  Entry& entry = entries_[static_cast<std::size_t>(param.index)];
  if (entry.fresh) return entry.value;
  QuantizeRequest request{value, param.fp8, Fp8Role::kWeight, slot.used, slot.seen};
  request.columns = tools_.options.gradients;
  request.tag = "quantized weights";
  if (param.fp8.scaling == Fp8Scaling::kTensorwise) {
    if (entry.amax.empty()) entry.amax = Tensor(tools_.arena, Dtype::kF32, {1}, request.tag);
    tools_.kernels.quantize.amax(tools_.stream, value, entry.amax.as<float>());
    if (param.split.dim >= 0) {
      tools_.mesh.tp().all_reduce(entry.amax, Reduction::kMax, "largest number").wait();
    }
    request.amax = entry.amax.as<float>();
  }
  QuantizeTools tools{tools_.kernels, tools_.stream, tools_.arena};
  if (entry.value.rows.empty()) {
    entry.value = quantize(tools, request);
  } else {
    quantize_into(tools, request, entry.value);
  }
  entry.fresh = true;
  return entry.value;
}

void QuantizedWeights::expire() {
  for (Entry& entry : entries_) entry.fresh = false;
}

}  // namespace bev
