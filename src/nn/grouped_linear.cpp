#include "nn/grouped_linear.h"

#include "base/error.h"
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
  for (LowRank& adapter : adapters) adapter.params(list);
}

namespace {

// Zeros in `columns` columns, for outputs without an adapter.
Var zero_columns(Context& ctx, const Var& like, std::int64_t columns) {
  Tensor zeros = ctx.allocate(like.dtype(), {like.shape()[0], columns}, "activations");
  ctx.kernels.fill(ctx.stream, zeros, 0);
  return make_output(ctx, "zero_columns", std::move(zeros), like.placement, false);
}

}  // namespace

// The outputs of all adapters side by side.
Var GroupedLinear::adapted(Context& ctx, const Var& x, const ExpertRows& rows, const Var& y) const {
  Var sum;
  std::int64_t end = 0;  // columns so far
  auto append = [&](Var columns) {
    end += columns.shape()[1];
    sum = sum.tensor.empty() ? std::move(columns) : join_columns(ctx, sum, columns);
  };
  for (const LowRank& adapter : adapters) {
    std::int64_t first = adapter.first_column(weight, ctx.mesh);
    if (first > end) append(zero_columns(ctx, y, first - end));
    Var inner = scaled(ctx, grouped_linear(ctx, x, rows, adapter.a, nullptr), adapter.scale);
    append(grouped_linear(ctx, inner, rows, adapter.b, nullptr));
  }
  if (end < y.shape()[1]) append(zero_columns(ctx, y, y.shape()[1] - end));
  return sum;
}

Var GroupedLinear::forward(Context& ctx, const Var& x, const ExpertRows& rows) const {
  bool column = weight.split.dim == 1;
  Var y = grouped_linear(ctx, x, rows, weight, column && bias ? &*bias : nullptr);
  if (!ctx.adapters || adapters.empty()) return y;
  BEV_CHECK(ctx.adapter_rows == nullptr, ErrorKind::kConfig, "adapter ", adapters.front().a.name,
            ": adapters of experts cannot differ between requests; serve the model with this "
            "adapter alone");
  return add(ctx, y, adapted(ctx, x, rows, y));
}

}  // namespace bev
