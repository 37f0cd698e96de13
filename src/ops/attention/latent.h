// Multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434): keys and values of a token are
// up-projected from a latent of R dims; a rotated key of P dims is shared by all heads.
#pragma once

#include <cstdint>

#include "autograd/tape.h"
#include "ops/attention/attention.h"

namespace bev {

struct LatentSpec {
  std::int64_t heads = 0;  // N, on this rank
  std::int64_t latent_size = 0;
  std::int64_t nope_size = 0, rope_size = 0;  // dims of a q or k head: A + P
  std::int64_t v_size = 0;

  std::int64_t qk_size() const { return nope_size + rope_size; }
};

// x [T, R + P] -> latent [T, R] and rope_key [T, P].
struct LatentParts {
  Var latent, rope_key;
};
LatentParts split_latent(Context& ctx, const Var& x, const LatentSpec& spec);

// q [T, N (A + P)] and kv [T, N (A + V)] shard(1), rope_key [T, P] copied over tp -> fused rows q |
// k | v for attention().
Var join_latent_heads(Context& ctx, const Var& q, const Var& kv, const Var& rope_key,
                      const LatentSpec& spec);

struct LatentRows {
  Var q, latent, rope_key;
};
// Writes the new latents and rotated keys to their rows of the cache [rows, R + P].
void keep_latents(Context& ctx, const LatentRows& rows, const Tensor& cache, const DecodeStep& step,
                  const LatentSpec& spec);

// MLA decoding with weight absorption: attention over cached latents, which include those of the
// new rows. The key part of kv_up [N (A + V), R] is applied to the queries and the value part to
// the result, so keys and values are never materialised. q [T, N (A + P)] -> [T, N V]. No gradient.
Var cached_latent_attention(Context& ctx, const LatentRows& rows, const Param& kv_up,
                            const Tensor& cache, const DecodeStep& step,
                            const AttentionSpec& attention, const LatentSpec& spec);

}  // namespace bev
