// MoE token permutation (sorting, permute, unpermute, weighting of rows) and grouped GEMM.
#include "kernels/moe.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/kernels/gemm_problem.h"
#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/moe_tables.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/tables.h"
#include "base/error.h"
#include "kernels/elementwise.h"
#include "kernels/optim.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

void sort_rows(const Stream&, const SortRowsArgs& args) {
  const std::int64_t slots = args.experts.numel(), count = args.offsets.numel() - 1;
  const auto* experts = args.experts.as<std::int32_t>();
  auto* offsets = args.offsets.as<std::int32_t>();
  auto* order = args.order.as<std::int32_t>();
  auto* place = args.place.as<std::int32_t>();
  const auto local = [&](std::int64_t slot) {
    const std::int64_t expert = experts[slot] - args.first_expert;
    return experts[slot] >= 0 && expert >= 0 && expert < count ? expert : std::int64_t{-1};
  };
  std::fill_n(offsets, count + 1, 0);
  for (std::int64_t s = 0; s < slots; ++s) {
    if (local(s) >= 0) ++offsets[local(s) + 1];
  }
  for (std::int64_t e = 0; e < count; ++e) offsets[e + 1] += offsets[e];
  std::fill(order + offsets[count], order + args.order.numel(), -1);
  // offsets[e] serves as the write cursor of expert e, and is shifted back at the end.
  for (std::int64_t s = 0; s < slots; ++s) {
    place[s] = local(s) >= 0 ? offsets[local(s)]++ : -1;
    if (place[s] >= 0) order[place[s]] = static_cast<std::int32_t>(s);
  }
  for (std::int64_t e = count; e > 0; --e) offsets[e] = offsets[e - 1];
  offsets[0] = 0;
}

void permute_rows(const Stream& stream, const PermuteRowsArgs& args) {
  const std::int64_t columns = args.rows.shape[1];
  BEV_CHECK(args.x.shape[1] == columns && args.x.dtype == args.rows.dtype,
            "gather_rows: ", args.x.shape, " to ", args.rows.shape);
  const auto bytes = static_cast<std::size_t>(columns) * size_of(args.x.dtype);
  if (bytes == 0) return;
  const int empty = args.x.dtype == Dtype::kI32 ? 0xff : 0;
  for_ranges(stream, args.rows.shape[0], rows_per_piece(columns),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t r = begin; r < end; ++r) {
                 std::byte* to = args.rows.address(r * columns);
                 if (args.order[r] < 0) {
                   std::memset(to, empty, bytes);
                 } else {
                   std::memcpy(to, args.x.address(args.order[r] / args.topk * columns), bytes);
                 }
               }
             });
}

constexpr std::int64_t kColumns = 256;  // summed at a time, in the accumulate type

template <class T>
void sum_token(const UnpermuteRowsArgs& args, std::int64_t token, std::int64_t columns) {
  using A = accumulate_t<T>;
  const T* rows = args.rows.as<T>();
  T* y = args.y.as<T>() + token * columns;
  for (std::int64_t begin = 0; begin < columns; begin += kColumns) {
    const std::int64_t count = std::min(kColumns, columns - begin);
    A sums[kColumns] = {};
    for (std::int64_t j = 0; j < args.topk; ++j) {
      const std::int64_t row = args.place[token * args.topk + j];
      if (row < 0) continue;
      const T* from = rows + row * columns + begin;
      for (std::int64_t i = 0; i < count; ++i) sums[i] += widen(from[i]);
    }
    for (std::int64_t i = 0; i < count; ++i) y[begin + i] = narrow<T>(sums[i]);
  }
}

void unpermute_rows(const Stream& stream, const UnpermuteRowsArgs& args) {
  const std::int64_t columns = args.y.shape[1];
  BEV_CHECK(args.rows.shape[1] == columns && args.rows.dtype == args.y.dtype,
            "sum_rows: ", args.rows.shape, " to ", args.y.shape);
  visit_float(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    for_ranges(stream, args.y.shape[0], rows_per_piece(columns * args.topk),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t) sum_token<T>(args, t, columns);
               });
  });
}

void scale_rows(const Stream& stream, const ScaleRowsArgs& args) {
  const std::int64_t columns = args.x.shape[1];
  visit_float(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    using A = accumulate_t<T>;
    const A* probs = args.probs.as<A>();
    for_ranges(stream, args.x.shape[0], rows_per_piece(columns),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t r = begin; r < end; ++r) {
                   const T* from = args.x.as<T>() + r * columns;
                   T* to = args.y.as<T>() + r * columns;
                   if (args.order[r] < 0) {
                     std::fill_n(to, columns, narrow<T>(0));
                     continue;
                   }
                   const A weight = probs[args.order[r]];
                   for (std::int64_t i = 0; i < columns; ++i) {
                     to[i] = narrow<T>(weight * widen(from[i]));
                   }
                 }
               });
  });
}

void scale_rows_backward(const Stream& stream, const ScaleRowsBackwardArgs& args) {
  const std::int64_t columns = args.x.shape[1];
  visit_float(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    using A = accumulate_t<T>;
    const A* probs = args.probs.as<A>();
    A* dprobs = args.dprobs.as<A>();
    for_ranges(stream, args.dprobs.numel(), kFlatPiece, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t s = begin; s < end; ++s) {
        if (args.place[s] < 0) dprobs[s] = 0;
      }
    });
    for_ranges(stream, args.x.shape[0], rows_per_piece(columns),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t r = begin; r < end; ++r) {
                   const T *dy = args.dy.as<T>() + r * columns, *x = args.x.as<T>() + r * columns;
                   T* dx = args.dx.as<T>() + r * columns;
                   const std::int32_t slot = args.order[r];
                   const A weight = slot < 0 ? A{0} : probs[slot];
                   A dot = 0;
                   for (std::int64_t i = 0; i < columns; ++i) {
                     const A d = widen(dy[i]);
                     dot += d * widen(x[i]);
                     dx[i] = narrow<T>(slot < 0 ? A{0} : weight * d);
                   }
                   if (slot >= 0) dprobs[slot] = dot;
                 }
               });
  });
}

View weight_of(const View& w, std::int64_t expert) {
  return w.rows(expert, expert + 1).reshape({w.shape[1], w.shape[2]});
}

View row_of(const View& bias, std::int64_t expert) {
  return bias.empty() ? View() : bias.rows(expert, expert + 1).flat();
}

// Grouped GEMM over gemm(expert, its rows of x, its rows of y).
using ExpertProduct = FunctionRef<GemmArgs(std::int64_t expert, const View& x, const View& y)>;
void multiply_experts(const Stream& stream, const GroupedGemmArgs& args, ExpertProduct gemm,
                      bool exact = false) {
  gemm_group(stream, {.count = args.w.shape[0], .exact = exact, .make = [&](std::int64_t e) {
                        const std::int64_t begin = args.offsets[e], end = args.offsets[e + 1];
                        return gemm(e, args.x.rows(begin, end), args.y.rows(begin, end));
                      }});
}

// Zeroes the rows past the last offset.
void clear_unused(const GroupedGemmArgs& args, const View& out) {
  const View unused = out.rows(args.offsets[args.w.shape[0]], out.shape[0]);
  std::fill_n(unused.address(0), unused.bytes(), std::byte{0});
}

void multiply_rows(const Stream& stream, const GroupedGemmArgs& args, bool exact) {
  const auto product = [&](std::int64_t e, const View& x, const View& y) -> GemmArgs {
    return {.a = x,
            .b = weight_of(args.w, e),
            .c = y,
            .transpose_b = true,
            .bias = row_of(args.bias, e)};
  };
  multiply_experts(stream, args, product, exact);
  clear_unused(args, args.y);
}

void grouped_gemm(const Stream& stream, const GroupedGemmArgs& args) {
  multiply_rows(stream, args, false);
}

void grouped_dgrad(const Stream& stream, const GroupedGemmArgs& args) {
  multiply_experts(stream, args, [&](std::int64_t e, const View& x, const View& y) -> GemmArgs {
    return {.a = y, .b = weight_of(args.w, e), .c = x};
  });
  clear_unused(args, args.x);
}

void grouped_wgrad(const Stream& stream, const GroupedGemmArgs& args) {
  if (!args.bias.empty()) {
    const auto column_sum = kernels().elementwise.column_sum;
    for (std::int64_t e = 0; e < args.bias.shape[0]; ++e) {
      column_sum(stream, args.y.rows(args.offsets[e], args.offsets[e + 1]), args.beta,
                 row_of(args.bias, e));
    }
  }
  if (args.w.empty()) return;
  multiply_experts(stream, args, [&](std::int64_t e, const View& x, const View& y) -> GemmArgs {
    return {.a = y, .b = x, .c = weight_of(args.w, e), .transpose_a = true, .beta = args.beta};
  });
  if (args.squares != nullptr) kernels().optim.sum_squares(stream, {&args.w, 1}, args.squares);
}

}  // namespace

void grouped_gemm_exact(const Stream& stream, const GroupedGemmArgs& args) {
  multiply_rows(stream, args, true);
}

MoeKernels kernel_table(Family<MoeKernels>) {
  return {.dispatch = dispatch,
          .sort_rows = sort_rows,
          .fit_rows = fit_rows,
          .permute_rows = permute_rows,
          .unpermute_rows = unpermute_rows,
          .scale_rows = scale_rows,
          .scale_rows_backward = scale_rows_backward,
          .grouped_gemm = grouped_gemm,
          .grouped_dgrad = grouped_dgrad,
          .grouped_wgrad = grouped_wgrad};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
