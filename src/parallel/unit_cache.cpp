#include "parallel/unit_cache.h"

#include <utility>

namespace bev {

UnitCache::Gathered UnitCache::gather(int unit) const {
  const BucketLayout::Bucket& bucket = plan_.bucket(unit);
  Tensor whole(tools_.arena, values_.dtype(unit), {bucket.size}, "gathered weights");
  Work work = plan_.shards(unit).all_gather(values_.owned(unit), whole,
                                            plan_.param(bucket.params.front()).name);
  return {unit, std::move(whole), std::move(work)};
}

std::optional<int> UnitCache::next() const {
  std::size_t position = trace_.size();
  bool as_before = position < last_trace_.size() && last_trace_[position - 1] == trace_.back();
  if (!as_before) return std::nullopt;
  return last_trace_[position];
}

Tensor UnitCache::use(int unit) {
  if (current_.unit == unit) return current_.whole;
  current_ = Gathered();  // its memory is free for what comes
  coming_.work.wait();    // a wrong guess, too, before its memory is let go
  current_ = std::exchange(coming_, Gathered());
  if (current_.unit != unit) {
    current_ = Gathered();
    current_ = gather(unit);
    current_.work.wait();
  }
  if (!in_step_) return current_.whole;
  trace_.push_back(unit);
  if (!tools_.options.overlap_gather) return current_.whole;
  if (std::optional<int> guess = next()) coming_ = gather(*guess);
  return current_.whole;
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
  coming_.work.wait();
  coming_ = Gathered();
}

}  // namespace bev
