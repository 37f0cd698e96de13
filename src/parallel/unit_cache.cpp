#include "parallel/unit_cache.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace bev {

UnitCache::Gathered UnitCache::gather(int unit) const {
  const BucketLayout::Bucket& bucket = plan_.bucket(unit);
  Group& shards = plan_.shards(unit);
  auto make = [&](const Shape& shape) {
    return Tensor(tools_.arena, values_.dtype(unit), shape, "gathered weights");
  };
  Gathered out;
  out.unit = unit;
  if (!plan_.gathers_payloads(unit)) {
    out.whole = make({bucket.size});
    out.works.push_back(
        shards.all_gather(values_.owned(unit), out.whole, plan_.param(bucket.params.front()).name));
    return out;
  }
  for (int index : bucket.params) {
    const Param& param = plan_.param(index);
    Tensor& weight = out.weights.emplace_back();
    if (plan_.gathers_payload(param)) continue;
    weight = make(param.local);
    out.works.push_back(shards.all_gather(values_.owned(param), weight.view().flat(), param.name));
  }
  return out;
}

std::optional<int> UnitCache::next() const {
  std::size_t position = trace_.size();
  bool as_before = position < last_trace_.size() && last_trace_[position - 1] == trace_.back();
  if (!as_before) return std::nullopt;
  return last_trace_[position];
}

WeightLease UnitCache::use(const Param& param) {
  int unit = plan_.place(param).bucket;
  if (current_.unit != unit) become_current(unit);
  if (current_.weights.empty()) {
    return {plan_.in_bucket(current_.whole, param), current_.whole};
  }
  auto place = std::ranges::find(plan_.bucket(unit).params, param.index);
  Tensor weight =
      current_.weights[static_cast<std::size_t>(place - plan_.bucket(unit).params.begin())];
  BEV_CHECK(!weight.empty(), ErrorKind::kInternal, param.name, ": is gathered in 8 bits");
  return {weight, weight};
}

void UnitCache::become_current(int unit) {
  current_ = Gathered();  // its memory is free for what comes
  coming_.wait();         // a wrong guess, too, before its memory is let go
  current_ = std::exchange(coming_, Gathered());
  if (current_.unit != unit) {
    current_ = Gathered();
    current_ = gather(unit);
    current_.wait();
  }
  if (!in_step_) return;
  trace_.push_back(unit);
  if (!tools_.options.overlap_gather) return;
  if (std::optional<int> guess = next()) coming_ = gather(*guess);
}

void UnitCache::begin_step() {
  clear();
  in_step_ = true;
  last_trace_ = std::exchange(trace_, {});
}

void UnitCache::end_step() {
  clear();
  in_step_ = false;
}

void UnitCache::clear() {
  current_ = Gathered();
  coming_.wait();
  coming_ = Gathered();
}

}  // namespace bev
