// RMSNorm and LayerNorm over the last dim with a fused residual addition, and the QK norm (RMSNorm
// of each head of q and k).
#pragma once

#include <cstdint>

#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// s = x (+ residual); y = (s - mean) * rstd * (offset + weight) + bias; mean only for LayerNorm.
// x, residual, sum, y: [T, H] of one dtype. weight, bias: [H] of the same dtype. With an f32
// residual stream and y, weight, bias of 16 bits, residual and sum are f32 and x is of y's dtype,
// or without a residual x is f32. Statistics are computed in the accumulate type and kept in mean,
// rstd [T] of that type (f32, or f64 for f64).
struct NormForwardArgs {
  View x;
  View residual;  // empty: none
  View sum;       // receives s; empty when residual is empty
  View y;         // without memory: not written, and amax must be null
  View weight;
  View bias = {};  // empty: none
  View mean;       // empty for RMSNorm
  View rstd;
  double epsilon = 1e-5;
  double offset = 0;  // 1 for norms that store weight - 1
  // Device. If set, becomes max(*amax, max |y|), with the NaN rule of QuantizeKernels::amax.
  float* amax = nullptr;
};

// dx = input gradient of the norm (+ dsum, the gradient that reaches s on the residual path). dy
// has the dtype of y; dsum and dx have that of s, and dx may alias those that have its dtype.
// dweight, dbias [H] in the gradient dtype (f32, bf16 or f64) = beta * old + new, summed in the
// accumulate type; empty: not wanted. Sums over rows have a fixed order that depends only on the
// shape.
struct NormBackwardArgs {
  View dy;
  View s;     // the norm's input
  View dsum;  // empty: none
  View weight;
  View mean, rstd;
  View dx;
  View dweight, dbias;
  double beta = 0;
  double offset = 0;
  float* amax = nullptr;  // as in the forward, over dx
};

// RMSNorm of each head of q and k inside fused rows [T, (N + 2K) D]: heads [0, N) use q_weight [D],
// heads [N, N + K) use k_weight; the v heads are copied. rstd [T, N + K].
struct HeadNormForwardArgs {
  View x, y;
  View q_weight, k_weight;
  View rstd;
  std::int64_t q_heads = 0, kv_heads = 0, head_size = 0;
  double epsilon = 1e-6;
  double offset = 0;
};

struct HeadNormBackwardArgs {
  View dy, x, dx;  // dx may alias dy
  View q_weight, k_weight;
  View rstd;
  View dq_weight, dk_weight;  // gradient dtype; empty: not wanted
  double q_beta = 0, k_beta = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_size = 0;
  double offset = 0;
};

// RMSNorm of all q columns of a row together, and of all its k columns, in fused rows [T, Q + K +
// V]; v is copied. Ranks may hold parts of the q and k of a row, so that its sums [T, 2] (of q, of
// k) are computed first and added over the ranks: of x^2, or given dy, of dy (offset + weight) x.
struct WidthNormShape {
  std::int64_t q_columns = 0, k_columns = 0;  // of this rank
  std::int64_t q_width = 0, k_width = 0;      // of all ranks
  double epsilon = 1e-6;
  double offset = 0;
};
struct WidthNormSumsArgs {
  WidthNormShape shape;
  View x;
  View dy = {};                       // empty: sums of squares
  View q_weight = {}, k_weight = {};  // [Q], [K]; used with dy
  View sums = {};                     // accumulate type of x
};
struct WidthNormForwardArgs {
  WidthNormShape shape;
  View x, y;
  View q_weight, k_weight;
  View squares;  // sums over all ranks
};
struct WidthNormBackwardArgs {
  WidthNormShape shape;
  View dy, x, dx;  // dx may alias dy
  View q_weight, k_weight;
  View squares, products;     // sums over all ranks; products: those with dy
  View dq_weight, dk_weight;  // gradient dtype; empty: not wanted
  double q_beta = 0, k_beta = 0;
};

struct NormKernels {
  void (*forward)(const Stream&, const NormForwardArgs&);
  void (*backward)(const Stream&, const NormBackwardArgs&);
  void (*head_forward)(const Stream&, const HeadNormForwardArgs&);
  void (*head_backward)(const Stream&, const HeadNormBackwardArgs&);
  void (*width_sums)(const Stream&, const WidthNormSumsArgs&);
  void (*width_forward)(const Stream&, const WidthNormForwardArgs&);
  void (*width_backward)(const Stream&, const WidthNormBackwardArgs&);
};

}  // namespace bev
