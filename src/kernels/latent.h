// Latent attention (DeepSeek-V2): keys and values are made of one small latent per token; a rotated
// part of the key is shared by all heads. N heads; a head of q and k has A dims without positions,
// then P rotated ones; a head of v has V.
#pragma once

#include <cstdint>

#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// Between the parts q [T, N (A + P)], kv [T, N (A + V)] (each head's A of the key, then its V of
// the value), rope_key [T, P], and attention's rows q | k | v of [T, N (A + P) + N (A + P) + N V].
struct LatentHeadsArgs {
  View q, kv, rope_key, rows;
  std::int64_t heads = 0, nope_size = 0, rope_size = 0, v_size = 0;
};

// For every row t and head h: y[t, h] = x[t, h] W_h, where W_h [inner, outer] is that head's own
// weight, or its transpose where `transpose` says that it is [outer, inner]. Rows of x are x_stride
// elements apart, heads of a row x_step; y likewise; weights of heads are weight_step apart.
struct HeadProductArgs {
  const void *x = nullptr, *weight = nullptr;
  void* y = nullptr;
  Dtype dtype = Dtype::kF32;
  std::int64_t rows = 0, heads = 0, inner = 0, outer = 0;
  std::int64_t x_stride = 0, x_step = 0, y_stride = 0, y_step = 0, weight_step = 0;
  bool transpose = false;
};

struct LatentKernels {
  // Fills rows from the parts.
  void (*join)(const Stream&, const LatentHeadsArgs&);
  // Its adjoint: fills the parts from rows, rope_key with the sum over heads.
  void (*split)(const Stream&, const LatentHeadsArgs&);
  void (*head_product)(const Stream&, const HeadProductArgs&);
};

}  // namespace bev
