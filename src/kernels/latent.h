// Multi-head latent attention (MLA, DeepSeek-V2): keys and values are up-projected from one small
// latent per token, and one rotated (RoPE) part of the key is shared by all heads. N heads; a head
// of q and k has A dims without positions (nope), then P rotated dims; a head of v has V dims.
#pragma once

#include <cstdint>

#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// The parts q [T, N (A + P)], kv [T, N (A + V)] (per head A dims of the key, then V of the value)
// and rope_key [T, P], and the q
// k
// v rows [T, N (A + P) + N (A + P) + N V] of attention.
struct LatentHeadsArgs {
  View q, kv, rope_key, rows;
  std::int64_t heads = 0, nope_size = 0, rope_size = 0, v_size = 0;
};

// Batched GEMM over heads, y[t, h] = x[t, h] W_h, with a weight W_h [inner, outer] per head, stored
// as [outer, inner] if `transpose`. Rows of x are x_stride elements apart and heads within a row
// x_step; y likewise; the weights of consecutive heads are weight_step apart.
struct HeadGemmArgs {
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
  // Adjoint of join: fills the parts from rows; rope_key gets the sum over heads.
  void (*split)(const Stream&, const LatentHeadsArgs&);
  void (*head_gemm)(const Stream&, const HeadGemmArgs&);
  // Decoding attends over cached latents, with the up-projections absorbed into queries and results
  // (other sums than in training). If false, expanded keys and values are cached.
  bool absorb = true;
};

}  // namespace bev
