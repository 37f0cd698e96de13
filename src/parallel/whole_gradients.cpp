#include "parallel/whole_gradients.h"

#include "base/error.h"

namespace bev {

void WholeGradients::begin_step(std::int64_t micro_batches) {
  sums_.clear();
  sums_.resize(static_cast<std::size_t>(plan_.bucket_count()));
  slots_.clear();
  buckets_.assign(static_cast<std::size_t>(plan_.bucket_count()), Bucket());
  for (const Param* param : plan_.params()) {
    slots_.push_back({true, param->trains ? param->uses * micro_batches : 0});
    auto bucket = static_cast<std::size_t>(plan_.place(*param).bucket);
    if (slots_.back().missing > 0) ++buckets_[bucket].incomplete;
  }
}

GradSink WholeGradients::open_sink(const Param& param) {
  const Slot& slot = slots_[static_cast<std::size_t>(param.index)];
  BEV_CHECK(!buckets_[static_cast<std::size_t>(plan_.place(param).bucket)].posted,
            ErrorKind::kInternal, "gradient of ", param.name,
            ": added to more often than its number of uses says");
  return {buffer_.param(param), slot.fresh ? 0.0 : 1.0, {}};
}

void WholeGradients::done(const Param& param) {
  Slot& slot = slots_[static_cast<std::size_t>(param.index)];
  int index = plan_.place(param).bucket;
  slot.fresh = false;
  if (--slot.missing != 0) return;
  bool complete = --buckets_[static_cast<std::size_t>(index)].incomplete == 0;
  if (complete && tools_.options.overlap_reduce) post(index);
}

void WholeGradients::post(int index) {
  buckets_[static_cast<std::size_t>(index)].posted = true;
  View whole = buffer_.bucket(index);
  for (int i : plan_.bucket(index).params) {
    if (slots_[static_cast<std::size_t>(i)].fresh) zero(plan_.in_bucket(whole, plan_.param(i)));
  }
  sum_over_tp(index, whole);
  PostedSum& sum = sums_[static_cast<std::size_t>(index)];
  sum = plan_.shards().size() > 1
            ? wire_.scatter(plan_.shards(), whole, {}, buffer_.owned(index), 0, label(index))
            : wire_.sum(plan_.replicas(), whole, label(index));
}

void WholeGradients::reduce() {
  for (int i = 0; i < plan_.bucket_count(); ++i) {
    if (plan_.trains(i) && !buckets_[static_cast<std::size_t>(i)].posted) post(i);
  }
  finish_all(sums_);
  if (plan_.shards().size() > 1) sum_over_replicas();
}

}  // namespace bev
