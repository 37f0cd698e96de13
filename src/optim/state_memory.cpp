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

MomentNames moment_names(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdamL2:
      return {"exp_avg", "exp_avg_sq"};
    case OptimizerKind::kLion:
      return {"exp_avg"};
    case OptimizerKind::kSgd:
    case OptimizerKind::kMuon:
      return {"momentum"};
    case OptimizerKind::kAdafactor:
    case OptimizerKind::kSoap:
      break;
  }
  return {};
}

void StateSize::add(std::int64_t range_elements, OptimizerKind kind) {
  const auto add_to = [&](Part& part) {
    part.elements += range_elements;
    part.blocks += moment_blocks(range_elements);
  };
  const MomentNames names = moment_names(kind);
  add_to(main);
  if (names.first != nullptr) add_to(m);
  if (names.second != nullptr) add_to(v);
}

StateTensors::StateTensors(const OptimConfig& config, Dtype model, const StateSize& size) {
  const OptimDtypes dtypes = config.dtypes.for_model(model);
  const auto scales_of = [&](Dtype moment, const StateSize::Part& part) -> Flat {
    return {Dtype::kU8, moment == Dtype::kU8 ? part.blocks : 0};
  };
  if (model != dtypes.main_params) main = {dtypes.main_params, size.main.elements};
  m = {dtypes.exp_avg, size.m.elements};
  m_scales = scales_of(dtypes.exp_avg, size.m);
  v = {dtypes.exp_avg_sq, size.v.elements};
  v_scales = scales_of(dtypes.exp_avg_sq, size.v);
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

RangeState StateMemory::take(std::int64_t elements, OptimizerKind kind) {
  StateSize end = taken_;
  end.add(elements, kind);
  const auto part = [](const Tensor& tensor, std::int64_t first, std::int64_t last) {
    return tensor.empty() || first == last ? View{} : tensor.view().rows(first, last);
  };
  const auto moment = [&](const Tensor& values, const Tensor& scales, const StateSize::Part& from,
                          const StateSize::Part& to) -> MomentState {
    return {part(values, from.elements, to.elements), part(scales, from.blocks, to.blocks)};
  };
  RangeState state{part(main_, taken_.main.elements, end.main.elements),
                   moment(m_, m_scales_, taken_.m, end.m), moment(v_, v_scales_, taken_.v, end.v)};
  taken_ = end;
  return state;
}

}  // namespace bev
