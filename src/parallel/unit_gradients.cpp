#include "parallel/unit_gradients.h"

#include <algorithm>
#include <utility>

namespace bev {

void UnitGradients::begin_step(std::int64_t) {
  pending_ = PostedSum();
  slots_.assign(plan_.params().size(), Slot());
  units_.assign(static_cast<std::size_t>(plan_.bucket_count()), Unit());
}

GradSink UnitGradients::open_sink(const Param& param) {
  int index = plan_.place(param).bucket;
  Unit& unit = units_[static_cast<std::size_t>(index)];
  if (unit.whole.empty()) {
    // Padding is exchanged with the rest and never read.
    unit.whole =
        Tensor(tools_.arena, buffer_.dtype(), {plan_.bucket(index).size}, "unreduced gradients");
  }
  ++unit.open_sinks;
  const Slot& slot = slots_[static_cast<std::size_t>(param.index)];
  return {plan_.in_bucket(unit.whole, param), slot.fresh ? 0.0 : 1.0, unit.whole};
}

int UnitGradients::awaited(const Param& param) const {
  if (!param.trains) return 0;
  return plan_.bucket(plan_.place(param).bucket).params.size() == 1 ? 1 : param.uses;
}

bool UnitGradients::complete(int unit) const {
  return std::ranges::all_of(plan_.bucket(unit).params, [&](int i) {
    return slots_[static_cast<std::size_t>(i)].ahead >= awaited(plan_.param(i));
  });
}

void UnitGradients::done(const Param& param) {
  int index = plan_.place(param).bucket;
  Slot& slot = slots_[static_cast<std::size_t>(param.index)];
  slot.fresh = false;
  ++slot.ahead;
  bool idle = --units_[static_cast<std::size_t>(index)].open_sinks == 0;
  if (idle && complete(index)) exchange(index);
}

void UnitGradients::exchange(int index) {
  Unit& unit = units_[static_cast<std::size_t>(index)];
  Tensor whole = std::exchange(unit.whole, Tensor());
  for (int i : plan_.bucket(index).params) {
    Slot& slot = slots_[static_cast<std::size_t>(i)];
    if (slot.fresh) zero(plan_.in_bucket(whole, plan_.param(i)));
    slot.fresh = true;
    slot.ahead -= awaited(plan_.param(i));
  }
  sum_over_tp(index, whole);
  pending_.finish();
  View in = whole;
  pending_ = wire_.scatter(plan_.shards(), in, std::move(whole), buffer_.owned(index),
                           std::exchange(unit.summed, true) ? 1.0 : 0.0, label(index));
  if (!tools_.options.overlap_reduce) pending_.finish();
}

void UnitGradients::reduce() {
  for (int i = 0; i < plan_.bucket_count(); ++i) {
    const Unit& unit = units_[static_cast<std::size_t>(i)];
    if (!unit.whole.empty()) exchange(i);
    if (!unit.summed) zero(buffer_.owned(i));
  }
  pending_.finish();
  sum_over_replicas();
}

}  // namespace bev
