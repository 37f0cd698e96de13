#include "checkpoint/owned_state.h"

#include <algorithm>

#include "base/philox.h"

namespace bev {

namespace {
constexpr const char* kMain = "optimizer.main/";
constexpr const char* kMomentum = "optimizer.momentum/";
constexpr const char* kFirstMoment = "optimizer.exp_avg/";
constexpr const char* kSecondMoment = "optimizer.exp_avg_sq/";

const char* first_moment(OptimizerKind kind) {
  return kind == OptimizerKind::kSgd ? kMomentum : kFirstMoment;
}
}  // namespace

bool is_weight(std::string_view tensor) { return tensor.find('/') == std::string_view::npos; }
std::string main_name(const std::string& param) { return kMain + param; }
bool is_main_name(std::string_view tensor) { return tensor.starts_with(kMain); }
std::string moment_of(std::string_view tensor) {
  for (std::string_view kind : {kMomentum, kFirstMoment, kSecondMoment}) {
    if (tensor.starts_with(kind)) return std::string(tensor.substr(kind.size()));
  }
  return "";
}
bool is_optional(std::string_view tensor) {
  return tensor.starts_with(amax_history_name("")) || tensor.starts_with(amax_used_name(""));
}

std::map<std::string, GlobalTensor> global_tensors(const ModelOptions& options,
                                                   bool with_optimizer) {
  std::map<std::string, GlobalTensor> tensors;
  OptimizerKind kind = options.optim.optimizer;
  OptimDtypes dtypes = options.optim.dtypes.for_model(options.dtype);
  std::vector<Param> declared = declare_params(options.model, options.fp8);
  std::vector<Param*> params;
  for (Param& param : declared) params.push_back(&param);
  apply_rules(options.optim.groups.rules(), params);
  for (const Param* param : params) {
    tensors[param->name] = {param->dtype(options.dtype), param->shape};
    if (with_optimizer && param->fp8.scaling == Fp8Scaling::kDelayed) {
      std::int64_t steps = options.fp8.fp8_amax_history_len;
      tensors[amax_history_name(param->name)] = {Dtype::kF32, {kFp8Roles, steps}};
      tensors[amax_used_name(param->name)] = {Dtype::kF32, {kFp8Roles}};
    }
    if (!with_optimizer || !param->trains || !has_state(*param)) continue;
    if (dtypes.main_params != options.dtype) {
      tensors[kMain + param->name] = {dtypes.main_params, param->shape};
    }
    tensors[first_moment(kind) + param->name] = {saved_dtype_of(dtypes.exp_avg), param->shape};
    if (kind == OptimizerKind::kSgd) continue;
    tensors[kSecondMoment + param->name] = {saved_dtype_of(dtypes.exp_avg_sq), param->shape};
  }
  return tensors;
}

std::vector<StatePart> owned_optimizer_state(Engine& engine) {
  std::vector<StatePart> parts;
  const Optimizer& optimizer = *engine.optimizer();
  const char* first = first_moment(engine.model().options().optim.optimizer);
  for (std::size_t i = 0; i < optimizer.ranges().size(); ++i) {
    const OptimRange& owned = optimizer.ranges()[i];
    const RangeState& state = optimizer.state(i);
    Range range{owned.offset, owned.offset + owned.value.numel()};
    auto add = [&](const char* kind, const MomentState& kept, MomentFormat format) {
      if (kept.values.empty()) return;
      parts.push_back(
          {kind + owned.param->name, owned.param, range, kept.values, kept.scales, format});
    };
    add(kMain, {state.main, {}}, MomentFormat::kSigned);
    add(first, state.m, MomentFormat::kSigned);
    add(kSecondMoment, state.v, MomentFormat::kPositive);
  }
  return parts;
}

std::vector<StatePart> scale_state(Engine& engine) {
  std::vector<StatePart> parts;
  for (const AmaxHistory::Part& part : engine.model().store().amaxes().parts()) {
    parts.push_back(
        {part.name_and_shape->name, part.name_and_shape, {0, part.memory.numel()}, part.memory});
  }
  return parts;
}

std::vector<StatePart> owned_state(Engine& engine, bool with_optimizer) {
  std::vector<StatePart> parts;
  for (const Param* param : engine.model().store().params()) {
    ValueRange owned = engine.model().store().owned_value(*param);
    if (owned.range.size() > 0) parts.push_back({param->name, param, owned.range, owned.value});
  }
  if (!with_optimizer) return parts;
  std::vector<StatePart> more = owned_optimizer_state(engine);
  parts.insert(parts.end(), more.begin(), more.end());
  if (engine.model().store().plan().dense_shards().rank() != 0) return parts;
  more = scale_state(engine);
  parts.insert(parts.end(), more.begin(), more.end());
  return parts;
}

// Holders are the replicas, times tp (etp for experts) if it does not shard the parameter, times
// the stages that hold the embedding weight. The first writer depends on the name, which
// distributes small tensors over the holders.
Range written_range(const Engine& engine, const StatePart& part, std::int64_t least) {
  const Param& param = *part.param;
  const ShardPlan& plan = engine.model().store().plan();
  const Group &replicas = plan.replicas(param), &tp = plan.tensor_parallel(param);
  std::int64_t holders = replicas.size(), holder = replicas.rank();
  if (param.split.dim < 0) {
    holder += holders * tp.rank();
    holders *= tp.size();
  }
  if (param.shared) {
    holder += holders * engine.model().mesh().embedding().rank();
    holders *= engine.model().mesh().embedding().size();
  }
  std::int64_t writers = std::clamp<std::int64_t>(part.range.size() / least, 1, holders);
  auto first =
      static_cast<std::int64_t>(hash_name(param.name) % static_cast<std::uint64_t>(holders));
  std::int64_t writer = (holder - first + holders) % holders;
  if (writer >= writers) return {part.range.begin, part.range.begin};
  Range share = shard_range(part.range.size(), writers, writer);
  return {part.range.begin + share.begin, part.range.begin + share.end};
}

}  // namespace bev
