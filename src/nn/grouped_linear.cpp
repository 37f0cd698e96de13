#include "nn/grouped_linear.h"

#include "ops/elementwise.h"

namespace bev {

namespace {

GroupedLinear make_grouped(const LinearSpec& spec, std::int64_t experts, Split weight_split,
                           Split bias_split) {
  GroupedLinear linear;
  linear.weight.name = spec.name + ".weight";
  linear.weight.shape = {experts, spec.out, spec.in};
  linear.weight.split = std::move(weight_split);
  linear.weight.init = {InitKind::kNormal, spec.std};
  if (!spec.bias) return linear;
  Param& bias = linear.bias.emplace();
  bias.name = spec.name + ".bias";
  bias.shape = {experts, spec.out};
  bias.split = std::move(bias_split);
  bias.init = {InitKind::kConstant, 0};
  bias.wd_mult = 0;
  return linear;
}

}  // namespace

GroupedLinear grouped_column_linear(const LinearSpec& spec, std::int64_t experts,
                                    std::vector<std::int64_t> segments) {
  Split split{Axis::kEtp, 1, std::move(segments)};
  return make_grouped(spec, experts, split, split);
}

// The bias of a row-parallel layer is added to tokens after combine, so every etp rank has all of
// it.
GroupedLinear grouped_row_linear(const LinearSpec& spec, std::int64_t experts) {
  return make_grouped(spec, experts, {Axis::kEtp, 2, {}}, {});
}

void GroupedLinear::params(std::vector<Param*>& list) {
  list.push_back(&weight);
  if (bias) list.push_back(&*bias);
  if (adapter) adapter->params(list);
}

Var GroupedLinear::forward(Context& ctx, const Var& x, const ExpertRows& rows) const {
  bool column = weight.split.dim == 1;
  Var y = grouped_linear(ctx, x, rows, weight, column && bias ? &*bias : nullptr);
  if (!adapter) return y;
  Var inner = scaled(ctx, grouped_linear(ctx, x, rows, adapter->a, nullptr), adapter->scale);
  return add(ctx, y, grouped_linear(ctx, inner, rows, adapter->b, nullptr));
}

}  // namespace bev
