// The linear layers of all experts as one module, run as a grouped GEMM: each expert's weight is
// multiplied with the rows of its tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/adapter.h"
#include "nn/linear.h"
#include "ops/moe/moe.h"

namespace bev {

struct GroupedLinear {
  Param weight;                   // [experts, out, in]
  std::optional<Param> bias;      // [experts, out]
  std::vector<LowRank> adapters;  // of rows that do not overlap, in their order

  void params(std::vector<Param*>& list);
  // x [R, in], permuted so that rows of an expert are contiguous -> [R, out]. A column-parallel
  // layer adds its bias. The output of a row-parallel layer is partial over etp: its bias is added
  // after the reduction (add_expert_biases).
  Var forward(Context& ctx, const Var& x, const ExpertRows& rows) const;

 private:
  Var adapted(Context& ctx, const Var& x, const ExpertRows& rows, const Var& y) const;
};

// column_linear and row_linear for each expert, split over etp.
GroupedLinear grouped_column_linear(const LinearSpec& spec, std::int64_t experts,
                                    std::vector<std::int64_t> segments);
GroupedLinear grouped_row_linear(const LinearSpec& spec, std::int64_t experts);

}  // namespace bev
