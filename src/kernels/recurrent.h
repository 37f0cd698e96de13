// What the recurrent mixers share: depthwise causal convolution with an optional SiLU, and the
// gated RMSNorm. Both compute in the accumulate type and round once.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/recurrent_run.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

inline constexpr std::int64_t kConvWidthLimit = 16;

// y_t = act(bias + sum_j w[:, j] x_(t - W + 1 + j)) within each run. Before a run come the W - 1
// tokens of its entering state [W - 1, C], oldest first, or zeros. Every row is in one run.
struct CausalConvShape {
  std::span<const RecurrentRun> runs;
  bool silu = false;
  StateRows entering;
};
// x, y [T, C], weight [C, W] (any shape of as many elements), bias [C] of one dtype.
struct CausalConvForwardArgs {
  CausalConvShape shape;
  View x, weight;
  View bias = {};  // empty: none
  View y;
  StateRows leaving;  // the last W - 1 tokens; may be the memory of the entering states
};
// dx may alias dy. dweight and dbias, of any floating dtype = beta * old + new.
struct CausalConvBackwardArgs {
  CausalConvShape shape;
  View dy, x, weight;
  View bias = {};
  View dx;
  View dweight, dbias;  // empty: not wanted
  double weight_beta = 0, bias_beta = 0;
  StateRows dentering;  // gradient of the entering states, at their rows; empty: not wanted
};

// Gate first: y = norm(x silu(z)) w, else y = norm(x) w silu(z); norm(v) = v / sqrt(mean v^2 + eps)
// over groups of columns. Weight w = offset + weight[column mod its size].
struct GatedNormShape {
  std::int64_t group_width = 0;   // columns normalised together, on all ranks; 0: y = x silu(z)
  std::int64_t first_column = 0;  // of these columns among those of the groups
  bool gate_first = true;
  double epsilon = 1e-5;
  double offset = 0;
};
// sums [T, G], accumulate type: over this rank's columns of each group, of v^2, or given dy, of v
// times the gradient of norm(v). Ranks that hold parts of a group add them.
struct GatedNormSumsArgs {
  GatedNormShape shape;
  View x, z;
  View dy = {}, weight = {};  // empty dy: sums of squares
  View sums = {};
};
// x, z, y [T, C] and the weight of one dtype.
struct GatedNormForwardArgs {
  GatedNormShape shape;
  View x, z, weight;
  View squares;  // over all ranks
  View y;
};
// dx and dz may alias dy, but not each other.
struct GatedNormBackwardArgs {
  GatedNormShape shape;
  View dy, x, z, weight;
  View squares, products;  // over all ranks; products: the sums with dy
  View dx, dz;
  View dweight;  // any floating dtype; empty: not wanted
  double beta = 0;
};

struct RecurrentKernels {
  void (*conv_forward)(const Stream&, const CausalConvForwardArgs&);
  void (*conv_backward)(const Stream&, const CausalConvBackwardArgs&);
  void (*norm_sums)(const Stream&, const GatedNormSumsArgs&);
  void (*norm_forward)(const Stream&, const GatedNormForwardArgs&);
  void (*norm_backward)(const Stream&, const GatedNormBackwardArgs&);
};

}  // namespace bev
