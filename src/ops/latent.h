// Latent attention (DeepSeek-V2, arXiv 2405.04434): a token's keys and values come of a latent of R
// numbers and a rotated key of P numbers that all heads share.
#pragma once

#include <cstdint>

#include "autograd/tape.h"
#include "ops/attention.h"

namespace bev {

struct LatentSpec {
  std::int64_t heads = 0;  // N, of this rank
  std::int64_t latent_size = 0;
  std::int64_t nope_size = 0, rope_size = 0;  // of a q or k head: A + P
  std::int64_t v_size = 0;

  std::int64_t qk_size() const { return nope_size + rope_size; }
};

// x [T, R + P] -> latent [T, R] and rope_key [T, P].
struct LatentParts {
  Var latent, rope_key;
};
LatentParts split_latent(Context& ctx, const Var& x, const LatentSpec& spec);

// q [T, N (A + P)] and kv [T, N (A + V)] shard(1), rope_key [T, P] copied over tp -> attention's
// rows q | k | v.
Var join_latent_heads(Context& ctx, const Var& q, const Var& kv, const Var& rope_key,
                      const LatentSpec& spec);

struct LatentRows {
  Var q, latent, rope_key;
};
// The new latents and rotated keys to their rows of the cache [capacity, R + P].
void keep_latents(Context& ctx, const LatentRows& rows, const Tensor& cache, const DecodeStep& step,
                  const LatentSpec& spec);

// Attention of new rows over kept latents, those of the new rows among them. The part of kv_up
// [N (A + V), R] that makes keys is applied to the queries, the one that makes values to the
// result, so that no key and no value is ever made. q [T, N (A + P)] -> [T, N V]. No gradient.
Var cached_latent_attention(Context& ctx, const LatentRows& rows, const Param& kv_up,
                            const Tensor& cache, const DecodeStep& step,
                            const AttentionSpec& attention, const LatentSpec& spec);

}  // namespace bev
