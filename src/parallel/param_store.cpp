#include "parallel/param_store.h"

#include <algorithm>

#include "base/error.h"
#include "base/philox.h"

namespace bev {

namespace {
View flat_range(const View& flat, std::int64_t begin, std::int64_t count) {
  return flat.rows(begin, begin + count);
}
}  // namespace

ParamStore::ParamStore(std::vector<Param*> params, const Mesh& mesh, Arena& arena,
                       const Kernels& kernels, Stream stream, const StoreOptions& options)
    : params_(std::move(params)),
      mesh_(mesh),
      group_(mesh.grads()),
      arena_(arena),
      kernels_(kernels),
      stream_(stream),
      options_(options) {
  for (std::size_t i = 0; i < params_.size(); ++i) {
    Param& param = *params_[i];
    param.index = static_cast<int>(i);
    param.local = param.split.local_shape(param.shape, mesh.tp().size(), mesh.tp().rank());
  }
  place_params();
  std::int64_t part = total_ / group_.size();
  values_ = Tensor(arena_, options_.dtype,
                   {shards(ShardingStrategy::kOptimGradsParams) ? part : total_}, "weights");
  kernels_.elementwise.fill(stream_, values_, 0);
  if (!options_.gradients) return;
  grads_ = Tensor(arena_, options_.grad_dtype,
                  {shards(ShardingStrategy::kOptimGrads) ? part : total_}, "weight gradients");
  kernels_.elementwise.fill(stream_, grads_, 0);
}

void ParamStore::place_params() {
  // Sharded gradients and values are exchanged parameter by parameter.
  BucketRules rules{group_.size(), shards(ShardingStrategy::kOptimGrads), options_.bucket_elements};
  std::vector<std::int64_t> sizes;
  for (const Param* param : params_) sizes.push_back(param->local.numel());
  BucketLayout layout = layout_buckets(sizes, rules);
  for (const BucketLayout::Place& place : layout.places) {
    slots_.push_back({place.bucket, place.offset, true, false, {}});
  }
  buckets_ = std::move(layout.buckets);
  total_ = layout.total;
}

Range ParamStore::owned(const Bucket& bucket) const {
  return bucket_part_range(bucket, group_.size(), group_.rank());
}

View ParamStore::bucket_part(const Tensor& flat, bool sharded, const Bucket& bucket) const {
  std::int64_t part = bucket.size / group_.size();
  std::int64_t begin = sharded ? bucket.begin / group_.size() : bucket.begin + part * group_.rank();
  return flat_range(flat, begin, part);
}

View ParamStore::param_view(const Tensor& flat, const Param& param) const {
  const Slot& at = slot_of(param);
  const Bucket& bucket = bucket_of(param);
  return flat_range(flat, bucket.begin + at.offset, param.local.numel()).reshape(param.local);
}

void ParamStore::initialise(std::uint64_t seed) {
  for (const Param* param : params_) {
    Tensor value(arena_, options_.dtype, param->local, "initial values");
    if (param->init.kind == InitKind::kConstant) {
      kernels_.elementwise.fill(stream_, value, param->init.value);
    } else {
      std::uint64_t key = mix_bits(seed, hash_name(param->name));
      View flat = value.view().flat();
      for (const ElementRun& run :
           element_runs(param->shape, param->split, mesh_.tp().size(), mesh_.tp().rank())) {
        kernels_.optim.normal(stream_, {flat_range(flat, run.local, run.count), key, run.global,
                                        0.0, param->init.value});
      }
    }
    set_local_value(*param, value);
  }
}

WeightLease ParamStore::gather(const Tensor& flat, bool sharded, const Param& param,
                               const char* tag) const {
  Tensor whole(arena_, flat.dtype(), {bucket_of(param).size}, tag);
  group_.all_gather(bucket_part(flat, sharded, bucket_of(param)), whole, param.name).wait();
  View view = flat_range(whole, slot_of(param).offset, param.local.numel()).reshape(param.local);
  return {view, std::move(whole)};
}

WeightLease ParamStore::use(const Param& param) {
  if (!shards(ShardingStrategy::kOptimGradsParams)) return {param_view(values_, param), {}};
  return gather(values_, true, param, "gathered weights");
}

WeightLease ParamStore::local_gradient(const Param& param) {
  // With sharded optimizer state only the owned part of the bucket holds the sum.
  if (!shards(ShardingStrategy::kOptim)) return {param_view(grads_, param), {}};
  return gather(grads_, shards(ShardingStrategy::kOptimGrads), param, "gathered gradients");
}

void ParamStore::set_local_value(const Param& param, const View& value) {
  BEV_CHECK(value.shape == param.local, "weight ", param.name, ": ", value.shape, " given for ",
            param.local);
  if (!shards(ShardingStrategy::kOptimGradsParams)) {
    kernels_.elementwise.cast(stream_, value, param_view(values_, param));
    return;
  }
  const Slot& at = slot_of(param);
  const Bucket& bucket = bucket_of(param);
  Range mine = owned(bucket);
  std::int64_t begin = std::max(mine.begin, at.offset);
  std::int64_t end = std::min(mine.end, at.offset + param.local.numel());
  if (begin >= end) return;
  View part = bucket_part(values_, true, bucket);
  kernels_.elementwise.cast(stream_, flat_range(value.flat(), begin - at.offset, end - begin),
                            flat_range(part, begin - mine.begin, end - begin));
}

void ParamStore::begin_step() {
  for (Slot& slot : slots_) slot.fresh = true;
}

GradSink ParamStore::sink(const Param& param, const Placement& placement) {
  Slot& at = slot_of(param);
  BEV_CHECK(!at.placed || at.gradient == placement, ErrorKind::kInternal, "gradient of ",
            param.name, ": {", placement, "} now, {", at.gradient, "} at an earlier use");
  at.placed = true;
  at.gradient = placement;
  if (!shards(ShardingStrategy::kOptimGrads)) {
    return {param_view(grads_, param), at.fresh ? 0.0 : 1.0, {}};
  }
  const Bucket& bucket = bucket_of(param);
  Tensor whole(arena_, options_.grad_dtype, {bucket.size}, "unreduced gradients");
  kernels_.elementwise.fill(
      stream_, flat_range(whole, param.local.numel(), bucket.size - param.local.numel()), 0);
  View view = flat_range(whole, 0, param.local.numel()).reshape(param.local);
  return {view, 0.0, std::move(whole)};
}

void ParamStore::done(const Param& param, GradSink sink) {
  Slot& at = slot_of(param);
  bool fresh = std::exchange(at.fresh, false);
  if (!shards(ShardingStrategy::kOptimGrads)) return;
  const Bucket& bucket = bucket_of(param);
  View part = bucket_part(grads_, true, bucket);
  if (fresh) {
    group_.reduce_scatter(sink.hold, part, param.name).wait();
    return;
  }
  Tensor sum(arena_, options_.grad_dtype, part.shape, "unreduced gradients");
  group_.reduce_scatter(sink.hold, sum, param.name).wait();
  kernels_.elementwise.add(stream_, part, sum, part);
}

// Sums over the ranks other than data-parallel ones that computed parts of the same gradient.
void ParamStore::reduce_replicas(const Param& param, const View& gradient) {
  const Slot& at = slot_of(param);
  if (at.gradient[Axis::kTp] == PlaceState::kPartial) {
    mesh_.tp().all_reduce(gradient, Reduction::kSum, param.name).wait();
  }
  if (param.shared) mesh_.embedding().all_reduce(gradient, Reduction::kSum, param.name).wait();
}

void ParamStore::finish_gradients() {
  bool sharded = shards(ShardingStrategy::kOptimGrads);
  for (const Param* param : params_) {
    if (!param->trains) continue;
    Slot& at = slot_of(*param);
    const Bucket& bucket = bucket_of(*param);
    View gradient = sharded ? bucket_part(grads_, true, bucket) : param_view(grads_, *param);
    if (at.fresh) kernels_.elementwise.fill(stream_, gradient, 0);
    reduce_replicas(*param, gradient);
  }
  if (sharded) return;
  for (const Bucket& bucket : buckets_) {
    View whole = flat_range(grads_, bucket.begin, bucket.size);
    if (shards(ShardingStrategy::kOptim)) {
      group_.reduce_scatter(whole, bucket_part(grads_, false, bucket), "gradient bucket").wait();
    } else {
      group_.all_reduce(whole, Reduction::kSum, "gradient bucket").wait();
    }
  }
}

std::vector<OptimRange> ParamStore::optim_ranges() const {
  bool part_only = shards(ShardingStrategy::kOptim);
  bool sharded_grads = shards(ShardingStrategy::kOptimGrads);
  bool sharded_values = shards(ShardingStrategy::kOptimGradsParams);
  std::vector<OptimRange> ranges;
  for (const Param* param : params_) {
    if (!param->trains) continue;
    const Slot& at = slot_of(*param);
    const Bucket& bucket = bucket_of(*param);
    Range mine = part_only ? owned(bucket) : Range{0, bucket.size};
    std::int64_t begin = std::max(mine.begin, at.offset);
    std::int64_t end = std::min(mine.end, at.offset + param->local.numel());
    if (begin >= end) continue;
    auto view = [&](const Tensor& flat, bool sharded) {
      View base =
          sharded ? bucket_part(flat, true, bucket) : flat_range(flat, bucket.begin, bucket.size);
      return flat_range(base, begin - (sharded ? mine.begin : 0), end - begin);
    };
    ranges.push_back(
        {param, begin - at.offset, view(values_, sharded_values), view(grads_, sharded_grads)});
  }
  return ranges;
}

double ParamStore::gradient_square_sum() {
  Tensor sum(arena_, Dtype::kF64, {1}, "gradient norm");
  *sum.as<double>() = 0;
  bool replicated = !shards(ShardingStrategy::kOptim);
  if (!replicated || group_.rank() == 0) {
    for (const OptimRange& range : optim_ranges()) {
      bool counted = !range.param->copy && (range.param->split.dim >= 0 || mesh_.tp().rank() == 0);
      if (counted) kernels_.optim.sum_squares(stream_, range.grad, sum.as<double>());
    }
  }
  mesh_.world().all_reduce(sum, Reduction::kSum, "gradient norm").wait();
  return *sum.as<double>();
}

void ParamStore::gather_values() {
  if (!shards(ShardingStrategy::kOptim) || shards(ShardingStrategy::kOptimGradsParams)) return;
  for (const Bucket& bucket : buckets_) {
    group_
        .all_gather(bucket_part(values_, false, bucket),
                    flat_range(values_, bucket.begin, bucket.size), "weight bucket")
        .wait();
  }
}

}  // namespace bev
