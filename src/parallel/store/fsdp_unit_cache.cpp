#include "parallel/store/fsdp_unit_cache.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace bev {

FsdpUnitCache::GatheredBucket FsdpUnitCache::gather_bucket(int index,
                                                           std::vector<Work>& works) const {
  const BucketLayout::Bucket& bucket = plan_.bucket(index);
  Group& shards = plan_.shards(index);
  auto make = [&](const Shape& shape) {
    return Tensor(tools_.arena, values_.dtype(index), shape, "gathered weights");
  };
  GatheredBucket out;
  out.bucket = index;
  if (!plan_.gathers_payloads(index)) {
    out.whole = make({bucket.size});
    works.push_back(shards.all_gather(values_.owned(index), out.whole,
                                      plan_.param(bucket.params.front()).name));
    return out;
  }
  for (int member : bucket.params) {
    const Param& param = plan_.param(member);
    Tensor& weight = out.weights.emplace_back();
    if (plan_.gathers_payload(param)) continue;
    weight = make(param.local);
    works.push_back(shards.all_gather(values_.owned(param), weight.view().flat(), param.name));
  }
  return out;
}

FsdpUnitCache::Gathered FsdpUnitCache::gather(int unit) const {
  Gathered out;
  out.unit = unit;
  for (int bucket : plan_.group(unit)) out.buckets.push_back(gather_bucket(bucket, out.works));
  return out;
}

std::optional<int> FsdpUnitCache::predicted_next() const {
  std::size_t position = trace_.size();
  bool as_before = position < last_trace_.size() && last_trace_[position - 1] == trace_.back();
  if (!as_before) return std::nullopt;
  return last_trace_[position];
}

WeightLease FsdpUnitCache::use(const Param& param) {
  int bucket = plan_.place(param).bucket, unit = plan_.bucket(bucket).group;
  const GatheredBucket& part =
      *std::ranges::find(gathered(unit).buckets, bucket, &GatheredBucket::bucket);
  if (part.weights.empty()) return {plan_.in_bucket(part.whole, param), part.whole};
  const std::vector<int>& members = plan_.bucket(bucket).params;
  auto place = std::ranges::find(members, param.index);
  Tensor weight = part.weights[static_cast<std::size_t>(place - members.begin())];
  BEV_CHECK(!weight.empty(), ErrorKind::kInternal, param.name, ": is gathered in 8 bits");
  return {weight, weight};
}

const FsdpUnitCache::Gathered& FsdpUnitCache::gathered(int unit) {
  if (holds_) return held(unit);
  if (current_.unit != unit) make_current(unit);
  return current_;
}

const FsdpUnitCache::Gathered& FsdpUnitCache::held(int unit) {
  auto found = std::ranges::find(held_, unit, &Gathered::unit);
  if (found != held_.end()) return *found;
  held_.push_back(gather(unit));
  held_.back().wait();
  return held_.back();
}

void FsdpUnitCache::release() {
  holds_ = false;
  held_.clear();
}

void FsdpUnitCache::make_current(int unit) {
  current_ = Gathered();  // frees its memory for the next unit
  prefetched_.wait();     // also after a misprediction, before its memory is freed
  current_ = std::exchange(prefetched_, Gathered());
  if (current_.unit != unit) {
    current_ = Gathered();
    current_ = gather(unit);
    current_.wait();
  }
  if (!in_step_) return;
  trace_.push_back(unit);
  if (tools_.options.overlap_gather) prefetch_next();
}

void FsdpUnitCache::prefetch_next() {
  if (std::optional<int> unit = predicted_next()) prefetched_ = gather(*unit);
}

void FsdpUnitCache::begin_step() {
  clear();
  in_step_ = true;
  last_trace_ = std::exchange(trace_, {});
}

void FsdpUnitCache::end_step() {
  clear();
  in_step_ = false;
}

void FsdpUnitCache::clear() {
  current_ = Gathered();
  prefetched_.wait();
  prefetched_ = Gathered();
}

}  // namespace bev
