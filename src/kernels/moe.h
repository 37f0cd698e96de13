// Mixture of experts: dispatch of tokens to ranks, permutation of rows by expert (permute and
// unpermute), and grouped GEMM. Row counts stay on the device, so the host never waits for them.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// Dispatch: the etp x ep members that hold one of a token's experts. An ep rank holds a contiguous
// range of experts (as shard_range cuts them) on etp members.
// members[t, j etp + i] = etp * (ep rank of choice j) + i, or -1 if an earlier choice of the token
// is on the same ep rank or the choice is empty. counts[m] = number of tokens for member m, and
// number of their choices among its experts.
struct DispatchArgs {
  View experts;          // [T, k] i32
  View members, counts;  // i32 [T, k etp], [etp ep, 2]
  std::int64_t expert_count = 0, etp = 1;
};

// Row order by expert, then token. Slot t k + j is choice j of token t. order[r] is the slot of row
// r, place[s] the row of slot s or -1; rows of expert first_expert + e are [offsets[e], offsets[e +
// 1]). Slots of other experts, or of -1, get no row; unused rows have order -1.
struct SortRowsArgs {
  View experts;  // [T, k] i32
  std::int64_t first_expert = 0;
  View order, place, offsets;  // i32 [R], [T k], [E + 1]
};

// Fits the sorted rows into a buffer of fixed size R, that of `fitted`. Without blocks rows keep
// their position; with blocks the rows of expert e begin at e block. A row past the end of the
// buffer or of its block is dropped: its slot gets no row. fitted is the new order, -1 where there
// is no row; place is updated, and without blocks offsets too. *lost (f64, device) += dropped rows.
struct FitRowsArgs {
  View order, place, offsets;  // as in SortRowsArgs
  View fitted;                 // i32 [R]
  std::int64_t block = 0;      // 0: no blocks; otherwise R = E * block
  double* lost = nullptr;
};

// Permute: rows[r] = x[order[r] / topk], zeros where order is -1; for i32, -1 instead of zeros.
// order and place are the same map (SortRowsArgs), for kernels that iterate by row or by token. The
// adjoint of sum_rows.
struct PermuteRowsArgs {
  View x, rows;  // [T, H], [R, H]
  const std::int32_t *order = nullptr, *place = nullptr;
  std::int64_t topk = 1;
};

// Unpermute: y[t] = sum of rows[place[t topk + j]] in the order of j, in f32 (f64), without slots
// whose place is -1. The adjoint of gather_rows.
struct UnpermuteRowsArgs {
  View rows, y;  // [R, H], [T, H]
  const std::int32_t* place = nullptr;
  std::int64_t topk = 1;
};

// y[r] = x[r] * probs[order[r]]; zeros where order is -1. x, y [R, F] may alias; probs [T, k].
struct ScaleRowsArgs {
  View x, y, probs;
  const std::int32_t* order = nullptr;
};

// dx[r] = dy[r] * probs[order[r]] and dprobs[order[r]] = dot(dy[r], x[r]); dprobs is zero for slots
// without a row. dx may alias dy.
struct ScaleRowsBackwardArgs {
  View dy, x, probs, dx, dprobs;
  const std::int32_t* order = nullptr;
  const std::int32_t* place = nullptr;
};

// Grouped GEMM: rows [offsets[e], offsets[e + 1]) times the weight of expert e. x [R, I], w [E, O,
// I], y [R, O]; dtypes as in GemmArgs. Rows of y and dx past the last offset become zeros.
struct GroupedGemmArgs {
  View x, w, y;
  View bias = {};                         // [E, O]: y = x w^T + bias; empty: none
  const std::int32_t* offsets = nullptr;  // [E + 1], device
  double beta = 0;                        // for wgrad
  double* squares = nullptr;              // f64, device: += sum of squares of dw; null: not wanted
};

struct MoeKernels {
  void (*dispatch)(const Stream&, const DispatchArgs&);
  void (*sort_rows)(const Stream&, const SortRowsArgs&);
  void (*fit_rows)(const Stream&, const FitRowsArgs&);
  void (*permute_rows)(const Stream&, const PermuteRowsArgs&);
  void (*unpermute_rows)(const Stream&, const UnpermuteRowsArgs&);
  void (*scale_rows)(const Stream&, const ScaleRowsArgs&);
  void (*scale_rows_backward)(const Stream&, const ScaleRowsBackwardArgs&);
  // Forward: y = x w^T (+ bias).
  void (*grouped_gemm)(const Stream&, const GroupedGemmArgs&);
  // dgrad: x = y w.
  void (*grouped_dgrad)(const Stream&, const GroupedGemmArgs&);
  // wgrad: w = beta w + y^T x; an expert without rows contributes zeros. If bias is not empty, bias
  // = beta bias + column sums of y (w may then be empty).
  void (*grouped_wgrad)(const Stream&, const GroupedGemmArgs&);
};

}  // namespace bev
