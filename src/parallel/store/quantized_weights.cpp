#include "parallel/store/quantized_weights.h"

#include <numeric>

#include "autograd/quantize.h"

namespace bev {

namespace {
constexpr const char* kTag = "quantized weights";

// The shape of a flat range as a matrix for the kernel; the row length divides it.
Shape matrix_of(std::int64_t elements) {
  std::int64_t width = elements == 0 ? 16 : std::gcd<std::int64_t>(elements, 4096);
  return {elements / width, width};
}
// Stacks the weights of the experts. Their rows are whole blocks, so no scale block covers two
// experts.
View as_matrix(const View& value) {
  if (value.shape.ndim() == 2) return value;
  return value.reshape({value.shape[0] * value.shape[1], value.shape[2]});
}
}  // namespace

Quantized QuantizedWeights::use(const Param& param, const View& value) {
  int unit = plan_.place(param).bucket;
  if (!values_.whole() && unit != unit_) {
    finish_gathers();
    for (Entry& other : entries_) other = Entry();
  }
  unit_ = unit;
  Entry& mine = entry(param);
  if (mine.fresh) return mine.value;
  if (plan_.gathers_payload(param)) {
    if (!mine.started) start_gathers(unit);
    mine.gathering.wait();
    mine.piece = Tensor();
    if (tools_.options.gradients) {
      tools_.kernels.quantize.transpose(tools_.stream, mine.value.rows, mine.value.columns);
    }
  } else {
    quantize_whole(param, value);
  }
  mine.fresh = true;
  return mine.value;
}

void QuantizedWeights::quantize_whole(const Param& param, const View& value) {
  Entry& mine = entry(param);
  QuantizeRequest request;
  request.x = as_matrix(value);
  request.recipe = param.fp8;
  request.role = Fp8Role::kWeight;
  request.columns = tools_.options.gradients;
  request.tag = kTag;
  if (param.fp8.scaling == Fp8Scaling::kDelayed) {
    AmaxSlot slot = amaxes_.slot(param, Fp8Role::kWeight);
    request.amax = slot.used;
    request.seen = slot.seen;
  }
  if (param.fp8.needs_amax()) {
    if (mine.amax.empty()) mine.amax = Tensor(tools_.arena, Dtype::kF32, {1}, kTag);
    tools_.kernels.quantize.amax(tools_.stream, value, mine.amax.as<float>());
    if (param.split.dim >= 0) {
      tools_.mesh.tp().all_reduce(mine.amax, Reduction::kMax, "largest number").wait();
    }
    request.amax = mine.amax.as<float>();
  }
  QuantizeTools tools{tools_.kernels, tools_.stream, tools_.arena};
  if (mine.value.rows.empty()) {
    mine.value = quantize(tools, request);
  } else {
    quantize_into(tools, request, mine.value);
  }
}

void QuantizedWeights::find_amaxes() {
  auto count = static_cast<std::int64_t>(entries_.size());
  if (all_amaxes_.empty()) all_amaxes_ = Tensor(tools_.arena, Dtype::kF32, {count}, kTag);
  tools_.kernels.fill(tools_.stream, all_amaxes_, 0);
  for (const Param* param : plan_.params()) {
    if (!plan_.gathers_payload(*param) || param->fp8.scaling != Fp8Scaling::kTensorwise) continue;
    View owned = values_.owned(*param);
    if (!owned.empty() && owned.numel() > 0) {
      tools_.kernels.quantize.amax(tools_.stream, owned, all_amaxes_.as<float>() + param->index);
    }
  }
  plan_.dense_shards().all_reduce(all_amaxes_, Reduction::kMax, "largest numbers").wait();
  tools_.mesh.tp().all_reduce(all_amaxes_, Reduction::kMax, "largest numbers").wait();
}

void QuantizedWeights::start_gather(const Param& param) {
  Entry& mine = entry(param);
  auto make = [&](Dtype dtype, const Shape& shape) {
    return Tensor(tools_.arena, dtype, shape, kTag);
  };
  Quantized& value = mine.value;
  if (value.rows.empty()) {
    value.rows = make(Dtype::kU8, param.local);
    value.row_scales = value.column_scales = make(Dtype::kF32, {1});
    std::int64_t padded = padded_rows(ScaleBlock::kTensor, param.local[0]);
    if (tools_.options.gradients) value.columns = make(Dtype::kU8, {param.local[1], padded});
  }
  View owned = values_.owned(param);
  Shape matrix = matrix_of(plan_.owned(param).size());
  mine.piece = make(Dtype::kU8, matrix);
  QuantizeArgs args;
  args.x = {owned.empty() ? mine.piece.view().data : owned.data, owned.dtype, matrix};
  args.rows = mine.piece;
  args.row_scales = value.row_scales;
  args.margin = param.fp8.margin;
  args.amax = all_amaxes_.as<float>() + param.index;
  if (param.fp8.scaling == Fp8Scaling::kDelayed) {
    AmaxSlot slot = amaxes_.slot(param, Fp8Role::kWeight);
    args.amax = slot.used;
    args.seen = slot.seen;
  }
  tools_.kernels.quantize.quantize(tools_.stream, args);
  mine.started = true;
  mine.gathering = plan_.dense_shards().all_gather(mine.piece.view().flat(),
                                                   value.rows.view().flat(), param.name);
}

void QuantizedWeights::start_gathers(int unit) {
  if (!found_) find_amaxes();
  found_ = true;
  for (const Param* param : plan_.params()) {
    bool here = values_.whole() || plan_.place(*param).bucket == unit;
    if (here && plan_.gathers_payload(*param)) start_gather(*param);
  }
}

void QuantizedWeights::finish_gathers() {
  for (Entry& each : entries_) {
    each.gathering.wait();
    each.piece = Tensor();
    each.started = each.fresh = false;
  }
}

void QuantizedWeights::expire() {
  found_ = false;
  finish_gathers();
}

}  // namespace bev
