#include "bridge/adapter_start.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "bridge/convert.h"
#include "kernels/device.h"
#include "models/lora.h"
#include "optim/singular_values.h"

namespace bev {

namespace {

const Param* held(const RankModel& model, std::string_view name) {
  for (const Param* param : model.store().params()) {
    if (param->name == name) return param;
  }
  return nullptr;
}

// Rows of this rank's part of a weight, in f64.
std::vector<double> local_rows(RankModel& model, const Param& weight, Range rows) {
  Context& ctx = model.ctx();
  WeightLease lease = model.store().local_value(weight);
  View part = lease.view.rows(rows.begin, rows.end);
  std::vector<std::byte> bytes(part.bytes());
  ctx.kernels.device.fetch(ctx.stream, part, bytes.data()).wait();
  std::vector<double> values(static_cast<std::size_t>(part.numel()));
  convert_elements({bytes.data(), part.dtype}, {values.data(), Dtype::kF64}, part.numel());
  return values;
}

void set_local(RankModel& model, const Param& param, const std::vector<double>& values) {
  Context& ctx = model.ctx();
  Dtype dtype = param.dtype(model.options().dtype);
  Tensor value = ctx.allocate(dtype, param.local, "initial values");
  std::vector<std::byte> bytes(value.view().bytes());
  convert_elements({values.data(), Dtype::kF64}, {bytes.data(), dtype}, param.local.numel());
  ctx.kernels.device.upload(ctx.stream, bytes.data(), value);
  model.store().set_local_value(param, value);
}

void sum_over_tp(RankModel& model, std::vector<double>& values) {
  View view{values.data(), Dtype::kF64, {std::ssize(values)}};
  model.mesh().tp().host().all_reduce(view, Reduction::kSum, "rows of a weight").wait();
}

// Norms of the rows of this rank's part of a weight, over all of its columns.
std::vector<double> row_norms(RankModel& model, const Param& weight, Range rows) {
  const std::vector<double> values = local_rows(model, weight, rows);
  std::vector<double> norms(static_cast<std::size_t>(rows.size()));
  const std::size_t columns = values.size() / std::max<std::size_t>(norms.size(), 1);
  for (std::size_t i = 0; i < values.size(); ++i) norms[i / columns] += values[i] * values[i];
  if (weight.split.dim == 1) sum_over_tp(model, norms);
  for (double& norm : norms) norm = std::sqrt(norm);
  return norms;
}

// The parts of a matrix that the ranks of tp have, put together; several may have the same one.
std::vector<double> whole_matrix(RankModel& model, const Shape& shape, const Split& split,
                                 const std::vector<double>& local) {
  const auto count = static_cast<std::size_t>(shape.numel());
  std::vector<double> values(2 * count);  // sums, and the number of their terms
  for (const ElementRun& run : element_runs(shape, split, part_of(split, model.mesh()))) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      const auto at = static_cast<std::size_t>(run.global + i);
      values[at] = local[static_cast<std::size_t>(run.local + i)];
      values[count + at] = 1;
    }
  }
  if (!split.whole()) sum_over_tp(model, values);
  for (std::size_t i = 0; i < count; ++i) values[i] /= values[count + i];
  values.resize(count);
  return values;
}

// This rank's part of a whole parameter times a factor.
void set_whole(RankModel& model, std::string_view name, const std::vector<double>& values,
               double factor) {
  const Param& param = *held(model, name);
  std::vector<double> local(static_cast<std::size_t>(param.local.numel()));
  ParamPart part = part_of(param.split, model.mesh());
  for (const ElementRun& run : element_runs(param.shape, param.split, part)) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      local[static_cast<std::size_t>(run.local + i)] =
          factor * values[static_cast<std::size_t>(run.global + i)];
    }
  }
  set_local(model, param, local);
}

// B A is the part of the weight with the largest singular values, over the adapter's scale.
void set_leading_part(RankModel& model, const Param& declared, const AdaptedModule& module,
                      bool begins) {
  const Param* weight = held(model, declared.name);
  if (weight == nullptr) return;
  const LowRank frozen = make_low_rank(declared, module.spec);
  const std::int64_t first = frozen.first_column(declared, model.mesh());
  const Split& split = declared.split.dim == 1 ? declared.split : frozen.b.split;
  const Shape shape{frozen.b.shape[0], declared.shape[1]};
  const std::int64_t rows = held(model, frozen.b.name)->local[0];
  BEV_CHECK(begins || std::min(shape[0], shape[1]) <= kExactSingularValues, ErrorKind::kInput,
            "init_lora_weights is \"pissa\", and ", module.names.front(), " [", shape[0], ", ",
            shape[1], "] is too large to find the weights that it began with; save the adapter ",
            "with peft's path_initial_model_for_weight_conversion");
  LeadingPart part = leading_part(
      whole_matrix(model, shape, split, local_rows(model, *weight, {first, first + rows})),
      shape[0], shape[1], module.spec.rank);
  for (double& value : part.left) value /= std::sqrt(module.spec.scale);
  for (double& value : part.right) value /= std::sqrt(module.spec.scale);
  set_whole(model, frozen.a.name, part.right, 1);
  set_whole(model, frozen.b.name, part.left, -1);
  if (!begins) return;
  AdaptedModule trained = module;
  trained.spec.opposite = false;
  const LowRank adapter = make_low_rank(declared, trained.spec);
  set_whole(model, adapter.a.name, part.right, 1);
  set_whole(model, adapter.b.name, part.left, 1);
}

void set_leading_parts(RankModel& model, std::size_t number, bool begins) {
  const ModelConfig& config = model.options().model;
  const std::vector<LoraRules> rules = lora_rules(config);
  for_each_adapter(config, rules.at(number),
                   [&](const Param& declared, const AdaptedModule& module) {
                     if (module.spec.opposite) set_leading_part(model, declared, module, begins);
                   });
}

void copy_modules(RankModel& model) {
  for (const Param* param : model.store().params()) {
    if (param->trained_copy == nullptr) continue;
    WeightLease lease = model.store().local_value(*param);
    model.store().set_local_value(*param->trained_copy, lease.view);
  }
}

void set_magnitudes(RankModel& model) {
  const ModelConfig& config = model.options().model;
  LoraRules rules(config, config.lora);
  for_each_adapter(config, rules, [&](const Param& declared, const AdaptedModule& module) {
    LowRank adapter = make_low_rank(declared, module.spec);
    const Param* weight = held(model, declared.name);
    if (weight == nullptr || !adapter.magnitude) return;
    const Param& magnitude = *held(model, adapter.magnitude->name);
    std::int64_t first = adapter.first_column(declared, model.mesh());
    set_local(model, magnitude, row_norms(model, *weight, {first, first + magnitude.local[0]}));
  });
}

}  // namespace

void start_adapter(RankModel& model) {
  if (!model.options().model.lora.used()) return;
  copy_modules(model);
  set_leading_parts(model, 0, true);
  if (model.options().model.lora.dora) set_magnitudes(model);
}

void set_opposite_factors(RankModel& model, std::size_t number) {
  set_leading_parts(model, number, false);
}

}  // namespace bev
