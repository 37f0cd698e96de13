// The linear layers of all experts as one module: a weight for each expert, multiplied with the
// rows of that expert's tokens by a grouped GEMM.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/adapter.h"
#include "nn/linear.h"
#include "ops/moe.h"

namespace bev {

struct GroupedLinear {
  Param weight;               // [experts, out, in]
  std::optional<Param> bias;  // [experts, out]
  std::optional<LowRank> adapter;

  void params(std::vector<Param*>& list);
  void add_adapter(const AdapterOptions& options) { adapter = make_low_rank(weight, options); }
  // x [R, in], sorted by expert -> [R, out]. A column-parallel layer adds its bias. The result of a
  // row-parallel one is partial over etp: its bias is added after the sum (add_expert_biases).
  Var forward(Context& ctx, const Var& x, const ExpertRows& rows) const;
};

// As column_linear and row_linear, for each of the experts, over etp.
GroupedLinear grouped_column_linear(const LinearSpec& spec, std::int64_t experts,
                                    std::vector<std::int64_t> segments);
GroupedLinear grouped_row_linear(const LinearSpec& spec, std::int64_t experts);

}  // namespace bev
