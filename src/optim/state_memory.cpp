#include "optim/state_memory.h"

#include <cmath>

#include "tensor/moment8.h"

namespace bev {

std::vector<bool> choose_offloaded(std::span<const std::int64_t> sizes, double fraction) {
  std::vector<bool> offloaded;
  double seen = 0, chosen = 0;
  for (std::int64_t size : sizes) {
    const auto more = static_cast<double>(size);
    seen += more;
    const double wanted = fraction * seen;
    offloaded.push_back(std::abs(chosen + more - wanted) < std::abs(chosen - wanted));
    if (offloaded.back()) chosen += more;
  }
  return offloaded;
}

void StateSize::add(std::int64_t range_elements) {
  elements += range_elements;
  blocks += moment_blocks(range_elements);
}

StateTensors::StateTensors(const OptimConfig& config, Dtype model, const StateSize& size) {
  const OptimDtypes dtypes = config.dtypes.for_model(model);
  const auto scales_of = [&](Dtype moment) -> Flat {
    return {Dtype::kU8, moment == Dtype::kU8 ? size.blocks : 0};
  };
  if (model != dtypes.main_params) main = {dtypes.main_params, size.elements};
  m = {dtypes.exp_avg, size.elements};
  m_scales = scales_of(dtypes.exp_avg);
  if (config.optimizer == OptimizerKind::kSgd) return;
  v = {dtypes.exp_avg_sq, size.elements};
  v_scales = scales_of(dtypes.exp_avg_sq);
}

StateMemory::StateMemory(Context& ctx, Arena& arena, const StateTensors& tensors) {
  const auto allocate = [&](Arena& from, const StateTensors::Flat& flat, double value) {
    if (flat.elements == 0) return Tensor();
    Tensor tensor(from, flat.dtype, {flat.elements}, "optimizer");
    ctx.kernels.fill(ctx.stream, tensor, value);
    return tensor;
  };
  main_ = allocate(arena, tensors.main, 0);
  m_ = allocate(arena, tensors.m, 0);
  v_ = allocate(arena, tensors.v, 0);
  m_scales_ = allocate(ctx.arena, tensors.m_scales, kLeastMomentScale);
  v_scales_ = allocate(ctx.arena, tensors.v_scales, kLeastMomentScale);
}

RangeState StateMemory::take(std::int64_t elements) {
  StateSize end = taken_;
  end.add(elements);
  const auto part = [](const Tensor& tensor, std::int64_t first, std::int64_t last) {
    return tensor.empty() ? View{} : tensor.view().rows(first, last);
  };
  const auto moment = [&](const Tensor& values, const Tensor& scales) -> MomentState {
    return {part(values, taken_.elements, end.elements), part(scales, taken_.blocks, end.blocks)};
  };
  RangeState state{part(main_, taken_.elements, end.elements), moment(m_, m_scales_),
                   moment(v_, v_scales_)};
  taken_ = end;
  return state;
}

}  // namespace bev
