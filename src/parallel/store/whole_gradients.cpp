#include "parallel/store/whole_gradients.h"

#include "base/error.h"

namespace bev {

void WholeGradients::begin_step(std::int64_t micro_batches) {
  sums_.clear();
  buckets_.assign(static_cast<std::size_t>(plan_.bucket_count()), Bucket());
  slots_.assign(plan_.params().size(), Slot());
  for (const Param* param : plan_.params()) {
    if (param->trains) slot(*param).missing = param->uses * micro_batches;
    if (slot(*param).missing > 0) ++bucket(plan_.place(*param).bucket).incomplete;
  }
}

GradSink WholeGradients::open_sink(const Param& param) {
  BEV_CHECK(!bucket(plan_.place(param).bucket).posted, ErrorKind::kInternal, "gradient of ",
            param.name, ": added to more often than its number of uses says");
  return {buffer_.param(param), slot(param).fresh ? 0.0 : 1.0, {}};
}

void WholeGradients::done(const Param& param) {
  int index = plan_.place(param).bucket;
  slot(param).fresh = false;
  if (--slot(param).missing != 0) return;
  bool complete = --bucket(index).incomplete == 0;
  if (complete && tools_.options.overlap_reduce) post(index);
}

void WholeGradients::post(int index) {
  bucket(index).posted = true;
  View whole = buffer_.bucket(index);
  for (int i : plan_.bucket(index).params) {
    const Param& param = plan_.param(i);
    if (slot(param).fresh) zero(plan_.in_bucket(whole, param));
  }
  sum_over_tp(index, whole);
  make_room(sums_);
  Group& shards = plan_.shards(index);
  sums_.push_back(shards.size() > 1
                      ? wire_.scatter(among(shards, index), whole, {}, buffer_.owned(index), 0)
                      : wire_.sum(among(plan_.replicas(index), index), whole));
}

void WholeGradients::reduce() {
  for (int i = 0; i < plan_.bucket_count(); ++i) {
    if (plan_.trains(i) && !bucket(i).posted) post(i);
  }
  finish_all(sums_);
  sum_over_replicas(false);  // post() has done it for buckets without shards
}

}  // namespace bev
