#include "parallel/store/shard_plan.h"

#include <algorithm>

#include "parallel/store/nf4_weights.h"

namespace bev {

StoreOptions store_options(const ParallelConfig& config, const OptimDtypes& dtypes, Dtype dtype,
                           const Fp8Config& fp8) {
  StoreOptions options;
  options.dtype = dtype;
  options.grad_dtype = dtypes.for_model(dtype).main_grads;
  options.strategy = config.data_parallel_sharding_strategy;
  options.bucket_elements = config.ddp_bucket_size;
  options.overlap_reduce = config.overlap_grad_reduce;
  options.overlap_gather = config.overlap_param_gather;
  // bf16 gradients are reduced as they are, with sums in f32 on arrival.
  options.bf16_wire = config.grad_reduce_in_bf16 && options.grad_dtype != Dtype::kBf16;
  options.amax = {fp8.fp8_amax_history_len, fp8.fp8_amax_compute_algo == AmaxChoice::kMax,
                  fp8.fp8_interval};
  options.gather_payloads = fp8.used() && fp8.fp8_param_gather;
  return options;
}

std::int64_t shard_count(const StoreOptions& options, const MeshShape& mesh, bool of_experts) {
  if (options.strategy == ShardingStrategy::kNoShard) return 1;
  return of_experts ? mesh.expert_shards() : mesh.dp * mesh.cp / mesh.dp_instances;
}

BucketRules bucket_rules(const StoreOptions& options, const MeshShape& mesh) {
  std::int64_t ranks = mesh.dp * mesh.cp;
  std::int64_t elements = options.bucket_elements;
  if (elements == 0) elements = std::max<std::int64_t>(40'000'000, 1'000'000 * ranks);
  bool shared = shard_count(options, mesh, false) > 1 || shard_count(options, mesh, true) > 1;
  bool by_unit = shared && options.strategy >= ShardingStrategy::kOptimGrads;
  // The pieces of FP8 payloads must begin at addresses aligned for the quantise kernel.
  return {ranks, by_unit, elements, mesh.edp(), options.gather_payloads ? 16 : 1};
}

ShardPlan::ShardPlan(std::vector<Param*> params, const Mesh& mesh, const StoreOptions& options)
    : params_(std::move(params)),
      strategy_(options.strategy),
      gather_payloads_(options.gather_payloads) {
  auto group = [&](MeshGroup which) { return &mesh.group(which); };
  if (strategy_ == ShardingStrategy::kNoShard) {
    dense_ = {group(MeshGroup::kSelf), group(MeshGroup::kGrads), group(MeshGroup::kTp)};
    experts_ = {group(MeshGroup::kSelf), group(MeshGroup::kEdp), group(MeshGroup::kEtp)};
  } else {
    dense_ = {group(MeshGroup::kShards), group(MeshGroup::kReplicas), group(MeshGroup::kTp)};
    experts_ = {group(MeshGroup::kExpertShards), group(MeshGroup::kExpertReplicas),
                group(MeshGroup::kEtp)};
  }
  std::vector<BucketItem> items;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    Param& param = *params_[i];
    param.index = static_cast<int>(i);
    ParamPart part = part_of(param.split, mesh);
    param.local = param.split.local_shape(param.shape, part);
    if (param.format == ParamFormat::kNf4) param.nf4_layout = nf4_layout(param, part);
    items.push_back(bucket_item(param, part));
  }
  layout_ = layout_buckets(items, bucket_rules(options, mesh.shape()));
}

std::vector<std::int64_t> ShardPlan::begins(Dtype dtype, bool whole, BucketChoice choice) const {
  BucketParts parts;
  if (!whole) parts = {dense_.shards->size(), experts_.shards->size()};
  return bucket_begins(layout_, dtype, parts, choice);
}

bool ShardPlan::gathers_payloads(int index) const {
  return std::ranges::any_of(bucket(index).params,
                             [&](int i) { return gathers_payload(param(i)); });
}

Range ShardPlan::owned(int index) const {
  return bucket_part_range(bucket(index), shards(index).size(), shards(index).rank());
}

Range ShardPlan::owned(const Param& param) const {
  return owned_range(place(param), param.stored_elements(), owned(place(param).bucket));
}

Range ShardPlan::owned(const Param& param, int rank) const {
  const int index = place(param).bucket;
  const Range part = bucket_part_range(bucket(index), shards(index).size(), rank);
  return owned_range(place(param), param.local.numel(), part);
}

View ShardPlan::in_bucket(const View& bucket, const Param& param) const {
  std::int64_t begin = place(param).offset;
  View stored = bucket.rows(begin, begin + param.stored_elements());
  return param.format == ParamFormat::kNf4 ? stored : stored.reshape(param.local);
}

FlatBuffer::FlatBuffer(const ShardPlan& plan, const StoreTools& tools, const FlatBufferSpec& spec)
    : plan_(&plan),
      dtype_(spec.dtype),
      whole_(spec.whole),
      begins_(plan.begins(spec.dtype, spec.whole, spec.choice)),
      data_(tools.arena, Dtype::kU8, {begins_.back()}, spec.tag) {
  for (int i = 0; i < plan.bucket_count(); ++i) {
    if (spec.choice == BucketChoice::kTrained && !plan.trains(i)) continue;
    tools.kernels.fill(tools.stream, whole_ ? bucket(i) : owned(i), 0);
  }
}

View FlatBuffer::view(int index, Range elements) const {
  View all{
      data_.view().address(begins_[static_cast<std::size_t>(index)]), dtype(index), {elements.end}};
  return all.rows(elements.begin, elements.end);
}

View FlatBuffer::bucket(int index) const { return view(index, {0, plan_->bucket(index).size}); }

View FlatBuffer::param(const Param& param) const {
  return plan_->in_bucket(bucket(plan_->place(param).bucket), param);
}

View FlatBuffer::owned(int index) const {
  Range mine = plan_->owned(index);
  return view(index, whole_ ? mine : Range{0, mine.size()});
}

View FlatBuffer::owned(const Param& param) const {
  const BucketLayout::ParamSlot& place = plan_->place(param);
  Range mine = plan_->owned(param);
  if (mine.size() == 0) return owned(place.bucket).rows(0, 0);
  std::int64_t begin = place.offset + mine.begin - plan_->owned(place.bucket).begin;
  return owned(place.bucket).rows(begin, begin + mine.size());
}

}  // namespace bev
