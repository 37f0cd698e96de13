#include "checkpoint/owned_state.h"

#include <algorithm>

#include "base/philox.h"

namespace bev {

namespace {
constexpr std::string_view kMain = "optimizer.main/", kOptimizer = "optimizer.";

std::string moment_name(const char* moment, const std::string& param) {
  return concat(kOptimizer, moment, "/", param);
}

// The states of a parameter but its master weight, as the optimizer keeps them.
void add_moments(const ModelOptions& options, const Param& param,
                 std::map<std::string, GlobalTensor>& tensors) {
  const OptimizerKind kind = rule_of(options.optim, param);
  const OptimDtypes dtypes = options.optim.dtypes.for_model(options.dtype);
  const MomentNames names = moment_names(kind);
  const auto add = [&](const char* name, Dtype kept) {
    if (name != nullptr)
      tensors[moment_name(name, param.name)] = {saved_dtype_of(kept), param.shape};
  };
  add(names.first, dtypes.exp_avg);
  add(names.second, dtypes.exp_avg_sq);
  if (!needs_matrices(kind)) return;
  for (const MatrixStateSpec& spec :
       make_matrix_rule(options.optim, kind)->states(matrix_shape(param))) {
    tensors[moment_name(spec.name, param.name)] = {wide_of(options.dtype),
                                                   matrix_state_shape(param, spec)};
  }
}
}  // namespace

bool is_weight(std::string_view tensor) { return tensor.find('/') == std::string_view::npos; }
std::string main_name(const std::string& param) { return concat(kMain, param); }
bool is_main_name(std::string_view tensor) { return tensor.starts_with(kMain); }
std::string moment_of(std::string_view tensor) {
  if (!tensor.starts_with(kOptimizer) || is_main_name(tensor)) return "";
  return std::string(tensor.substr(tensor.find('/') + 1));
}
bool is_optional(std::string_view tensor) {
  return tensor.starts_with(amax_history_name("")) || tensor.starts_with(amax_used_name(""));
}

namespace {
// All parameters of the run's model, with what its rules say of them.
std::vector<Param> declare_run(const ModelOptions& options) {
  std::vector<Param> declared = declare_params(options.model, options.fp8);
  std::vector<Param*> params;
  for (Param& param : declared) params.push_back(&param);
  apply_rules(options.optim.groups.rules(), params);
  options.base.apply(params, !options.gradients);
  return declared;
}
}  // namespace

std::set<std::string, std::less<>> nf4_params(const ModelOptions& options) {
  std::set<std::string, std::less<>> names;
  for (const Param& param : declare_run(options)) {
    if (param.format == ParamFormat::kNf4) names.insert(param.name);
  }
  return names;
}

std::map<std::string, GlobalTensor> global_tensors(const ModelOptions& options,
                                                   bool with_optimizer) {
  std::map<std::string, GlobalTensor> tensors;
  OptimDtypes dtypes = options.optim.dtypes.for_model(options.dtype);
  for (const Param& param : declare_run(options)) {
    if (param.format == ParamFormat::kNf4) continue;
    tensors[param.name] = {param.dtype(options.dtype), param.shape};
    if (with_optimizer && param.fp8.scaling == Fp8Scaling::kDelayed) {
      std::int64_t steps = options.fp8.fp8_amax_history_len;
      tensors[amax_history_name(param.name)] = {Dtype::kF32, {kFp8Roles, steps}};
      tensors[amax_used_name(param.name)] = {Dtype::kF32, {kFp8Roles}};
    }
    if (!with_optimizer || !param.trains || !has_state(param)) continue;
    if (dtypes.main_params != options.dtype) {
      tensors[main_name(param.name)] = {dtypes.main_params, param.shape};
    }
    add_moments(options, param, tensors);
  }
  return tensors;
}

std::vector<StatePart> owned_optimizer_state(Engine& engine) {
  std::vector<StatePart> parts;
  const Optimizer& optimizer = *engine.optimizer();
  for (std::size_t i = 0; i < optimizer.ranges().size(); ++i) {
    const OptimRange& owned = optimizer.ranges()[i];
    const RangeState& state = optimizer.state(i);
    Range range{owned.offset, owned.offset + owned.value.numel()};
    const MomentNames names = moment_names(optimizer.kind(i));
    auto add = [&](const char* kind, const MomentState& kept, MomentFormat format) {
      if (kept.values.empty()) return;
      parts.push_back({moment_name(kind, owned.param->name), owned.param, range, kept.values,
                       kept.scales, format});
    };
    add("main", {state.main, {}}, MomentFormat::kSigned);
    add(names.first, state.m, MomentFormat::kSigned);
    add(names.second, state.v, MomentFormat::kPositive);
  }
  if (optimizer.matrix_states() == nullptr) return parts;
  for (const MatrixState& state : *optimizer.matrix_states()) {
    parts.push_back({state.declared.name, &state.declared, state.range, state.memory});
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
    if (param->format == ParamFormat::kNf4) continue;
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
