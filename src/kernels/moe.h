// Mixture of experts: who gets which tokens, the order of rows by expert, and products of each
// expert's rows with its own weight. Counts of rows stay on the device: nothing waits for the host.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// Which members of etp x ep each token goes to: those that have one of its experts. Ranks of ep
// have contiguous ranges of experts (as shard_range cuts them), each of which has etp members.
// members[t, j etp + i] = etp * (the ep rank of choice j) + i, or -1 where an earlier choice of the
// token is of the same rank, or there is none. counts[m] = tokens for member m, and their choices
// that are of its experts.
struct DispatchArgs {
  View experts;          // [T, k] i32
  View members, counts;  // i32 [T, k etp], [etp ep, 2]
  std::int64_t expert_count = 0, etp = 1;
};

// Rows in the order of expert, then token. Slot t k + j is choice j of token t. order[r] is the
// slot of row r, place[s] the row of slot s or -1, rows of expert first_expert + e are [offsets[e],
// offsets[e + 1]). Slots of other experts (-1 too) get no row; unused rows have order -1.
struct SortRowsArgs {
  View experts;  // [T, k] i32
  std::int64_t first_expert = 0;
  View order, place, offsets;  // i32 [R], [T k], [E + 1]
};

// Gives sorted rows places of which there are as many as `fitted` has, whoever they are of. Rows
// stay where they are or, with blocks, those of expert e begin at e block. A row past the end, or
// past its block, is lost: its slot gets no row. fitted is the new order, -1 where there is no row;
// place follows it, and without blocks offsets too. *lost (f64, device) grows by the lost rows.
struct FitRowsArgs {
  View order, place, offsets;  // of SortRowsArgs
  View fitted;                 // i32 [R]
  std::int64_t block = 0;      // 0: no blocks; otherwise R is E block
  double* lost = nullptr;
};

// rows[r] = x[order[r] / topk], zeros where order is -1. Also of i32, there -1. Order and place say
// the same (SortRowsArgs), for those who walk by row or by token. The gradient of sum_rows.
struct GatherRowsArgs {
  View x, rows;  // [T, H], [R, H]
  const std::int32_t *order = nullptr, *place = nullptr;
  std::int64_t topk = 1;
};

// y[t] = the sum of rows[place[t topk + j]] in the order of j, in f32 (f64), without those of place
// -1. The gradient of gather_rows.
struct SumRowsArgs {
  View rows, y;  // [R, H], [T, H]
  const std::int32_t* place = nullptr;
  std::int64_t topk = 1;
};

// y[r] = x[r] * probs[order[r]]; zeros where order is -1. x, y [R, F] may alias; probs [T, k].
struct WeighRowsArgs {
  View x, y, probs;
  const std::int32_t* order = nullptr;
};

// dx[r] = dy[r] * probs[order[r]] and dprobs[order[r]] = dy[r] . x[r], zeros for slots without a
// row. dx may alias dy.
struct WeighRowsBackwardArgs {
  View dy, x, probs, dx, dprobs;
  const std::int32_t* order = nullptr;
  const std::int32_t* place = nullptr;
};

// Of the rows [offsets[e], offsets[e + 1]) with weight e. x [R, I], w [E, O, I], y [R, O]; dtypes
// as in GemmArgs. Rows past the last offset become zeros in y and dx.
struct GroupedArgs {
  View x, w, y;
  View bias;                              // [E, O]: y = x w^T + bias; empty: none
  const std::int32_t* offsets = nullptr;  // [E + 1], device
  double beta = 0;                        // of dw
  double* squares = nullptr;  // f64, device: grows by the squares of dw; null: not wanted
};

struct MoeKernels {
  void (*dispatch)(const Stream&, const DispatchArgs&);
  void (*sort_rows)(const Stream&, const SortRowsArgs&);
  void (*fit_rows)(const Stream&, const FitRowsArgs&);
  void (*gather_rows)(const Stream&, const GatherRowsArgs&);
  void (*sum_rows)(const Stream&, const SumRowsArgs&);
  void (*weigh_rows)(const Stream&, const WeighRowsArgs&);
  void (*weigh_rows_backward)(const Stream&, const WeighRowsBackwardArgs&);
  // y = x w^T (+ bias)
  void (*grouped)(const Stream&, const GroupedArgs&);
  // x = y w
  void (*grouped_input)(const Stream&, const GroupedArgs&);
  // w = beta w + y^T x; an expert without rows gives zeros. bias = beta bias + the sums of y, where
  // there is one (then w may be empty).
  void (*grouped_weight)(const Stream&, const GroupedArgs&);
};

}  // namespace bev
