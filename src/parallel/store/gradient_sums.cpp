#include "parallel/store/gradient_sums.h"

#include "base/error.h"
#include "parallel/store/fsdp_unit_gradients.h"
#include "parallel/store/whole_gradients.h"

namespace bev {

std::unique_ptr<GradientSums> make_gradient_sums(const ShardPlan& plan, const StoreTools& tools) {
  if (plan.splits(ShardingStrategy::kOptimGrads)) {
    return std::make_unique<FsdpUnitGradients>(plan, tools);
  }
  return std::make_unique<WholeGradients>(plan, tools);
}

GradientSums::GradientSums(const ShardPlan& plan, const StoreTools& tools, bool whole)
    : plan_(plan),
      tools_(tools),
      wire_(tools),
      buffer_(plan, tools,
              {tools.options.grad_dtype, whole, BucketChoice::kTrained, "weight gradients"}),
      placements_(plan.params().size()) {}

SumAmong GradientSums::among(Group& group, int bucket) const {
  const BucketLayout::Bucket& summed = plan_.bucket(bucket);
  return {group, plan_.param(summed.params.front()).name, summed.format != ParamFormat::kModel};
}

GradSink GradientSums::sink(const Param& param, const Placement& placement) {
  Noted& noted = placements_[static_cast<std::size_t>(param.index)];
  BEV_CHECK(!noted.known || noted.placement == placement, ErrorKind::kInternal, "gradient of ",
            param.name, ": {", placement, "} now, {", noted.placement, "} at an earlier use");
  auto check = [&](Axis axis) {
    BEV_CHECK(placement[axis] == PlaceState::kPartial, ErrorKind::kInternal, "gradient of ",
              param.name, ": {", placement, "} is no part of a sum over ", name_of(axis),
              ", which will be taken: it would count several times");
  };
  if (param.split.of_experts()) {
    check(Axis::kEdp);
  } else {
    check(Axis::kDp);
    check(Axis::kCp);
  }
  noted = {true, placement};
  return open_sink(param);
}

bool partial_over_tp(const Param& param, const Placement& placement) {
  return placement[param.split.of_experts() ? Axis::kEtp : Axis::kTp] == PlaceState::kPartial;
}

void GradientSums::sum_over_tp(int index, const View& bucket) const {
  std::vector<Work> posted;
  for (int i : plan_.bucket(index).params) {
    const Param& param = plan_.param(i);
    const Noted& noted = placements_[static_cast<std::size_t>(i)];
    if (!noted.known || !partial_over_tp(param, noted.placement)) continue;
    Group& group = plan_.tensor_parallel(param);
    posted.push_back(group.all_reduce(plan_.in_bucket(bucket, param), Reduction::kSum, param.name));
  }
  for (Work& work : posted) work.wait();
}

void GradientSums::sum_over_replicas(bool all) const {
  std::vector<PostedSum> sums;
  for (int i = 0; i < plan_.bucket_count(); ++i) {
    if (!plan_.trains(i) || (!all && plan_.shards(i).size() == 1)) continue;
    make_room(sums);
    sums.push_back(wire_.sum(among(plan_.replicas(i), i), buffer_.owned(i)));
  }
  finish_all(sums);
}

void GradientSums::make_room(std::vector<PostedSum>& posted) {
  if (!posted.empty() && posted.back().staged()) posted.back().advance();
}

// Advances all sums by one collective at a time, so that none waits for later collectives of
// another.
void GradientSums::finish_all(std::vector<PostedSum>& sums) {
  for (bool more = true; more;) {
    more = false;
    for (PostedSum& sum : sums) more |= sum.advance();
  }
}

void GradientSums::finish() {
  reduce();
  // All holders of a tied embedding shard it alike, so each all-reduces its own shard only.
  for (const Param* param : plan_.params()) {
    if (!param->shared || !param->trains) continue;
    tools_.mesh.embedding()
        .all_reduce(buffer_.owned(plan_.place(*param).bucket), Reduction::kSum, param->name)
        .wait();
  }
}

}  // namespace bev
