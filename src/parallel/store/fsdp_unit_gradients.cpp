#include "parallel/store/fsdp_unit_gradients.h"

#include <algorithm>
#include <utility>

namespace bev {

void FsdpUnitGradients::begin_step(std::int64_t) {
  std::exchange(pending_, PostedSum());  // completes what an interrupted step left behind
  slots_.assign(plan_.params().size(), Slot());
  units_.assign(static_cast<std::size_t>(plan_.bucket_count()), Unit());
}

GradSink FsdpUnitGradients::open_sink(const Param& param) {
  Unit& unit = unit_of(param);
  if (unit.whole.empty()) {
    // Padding is reduced with the rest and never read.
    int bucket = plan_.place(param).bucket;
    Shape size{plan_.bucket(bucket).size};
    unit.whole = Tensor(tools_.arena, buffer_.dtype(bucket), size, "unreduced gradients");
  }
  ++unit.open_sinks;
  return {plan_.in_bucket(unit.whole, param), slot(param).fresh ? 0.0 : 1.0, unit.whole};
}

int FsdpUnitGradients::awaited(const Param& param) const {
  return plan_.bucket(plan_.place(param).bucket).params.size() == 1 ? 1 : param.uses;
}

bool FsdpUnitGradients::complete(int unit) {
  return std::ranges::all_of(plan_.bucket(unit).params, [&](int i) {
    return slot(plan_.param(i)).ahead >= awaited(plan_.param(i));
  });
}

void FsdpUnitGradients::done(const Param& param) {
  slot(param).fresh = false;
  ++slot(param).ahead;
  bool idle = --unit_of(param).open_sinks == 0;
  int unit = plan_.place(param).bucket;
  if (idle && complete(unit)) exchange(unit);
}

void FsdpUnitGradients::exchange(int index) {
  Unit& unit = units_[static_cast<std::size_t>(index)];
  Tensor whole = std::exchange(unit.whole, Tensor());
  View in = whole;
  for (int i : plan_.bucket(index).params) {
    const Param& param = plan_.param(i);
    if (slot(param).fresh) zero(plan_.in_bucket(in, param));
    slot(param).fresh = true;
    slot(param).ahead -= awaited(param);
  }
  sum_over_tp(index, in);
  pending_.finish();
  double beta = std::exchange(unit.summed, true) ? 1 : 0;
  pending_ = wire_.scatter(among(plan_.shards(index), index), in, std::move(whole),
                           buffer_.owned(index), beta);
  if (!tools_.options.overlap_reduce) pending_.finish();
}

void FsdpUnitGradients::pause() {
  for (int i = 0; i < plan_.bucket_count(); ++i) {
    if (!units_[static_cast<std::size_t>(i)].whole.empty()) exchange(i);
  }
  pending_.finish();
}

void FsdpUnitGradients::reduce() {
  pause();
  for (int i = 0; i < plan_.bucket_count(); ++i) {
    bool missing = plan_.trains(i) && !units_[static_cast<std::size_t>(i)].summed;
    if (missing) zero(buffer_.owned(i));
  }
  sum_over_replicas(true);
}

}  // namespace bev
