// Multi-head latent attention (MLA, DeepSeek-V2): queries, keys and values are up-projections of
// low-rank latents, each with a norm; the decoupled RoPE part of the key is shared by all heads.
// Down-projections are replicated over tp, up-projections are split by heads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nn/attention.h"
#include "ops/attention/latent.h"

namespace bev {

class LatentAttention final : public Mixer {
 public:
  LatentAttention(const std::string& name, const AttentionOptions& options);

  CoreAttention core;
  std::optional<Linear> q_down;
  std::optional<Norm> q_norm, kv_norm;
  Linear q_up;  // reads the input if there is no q_down
  Linear kv_down, kv_up;
  Linear proj;
  std::vector<Param> indexer;  // kept for export, and not computed with

  void params(std::vector<Param*>& list) override;
  void linears(std::vector<Linear*>& list) override;
  Var forward(Context& ctx, const Var& x, const LayerInput& input) const override;
  // The KV cache holds the latent and the RoPE key of each token, shared by all heads.
  StateSpec state(const Context& ctx) const override;

 private:
  // The inputs of the heads: the query latent (without one, the input of the layer), the KV latent,
  // and the RoPE part of the keys.
  struct Source {
    Var q, latent, rope_key;
  };
  class HeadsRecipe;

  void add_indexer(const std::string& prefix);
  void set_logit_rows();
  LatentSpec spec(const AttentionSpec& attention) const;
  // Whether generation keeps latents and attends over them. An adapter of the up-projection is not
  // absorbed: with one the cache holds the keys and values of all heads.
  bool absorbs(const Context& ctx) const;
  Source source(Context& ctx, const Var& x, const LayerInput& input,
                const AttentionSpec& here) const;
  LatentRows rows(Context& ctx, const Source& from, const LayerInput& input,
                  const AttentionSpec& here) const;
  // `of` gives the heads and dims to rotate; the rest comes from the layer. Returns x if the layer
  // has no RoPE.
  Var rotate(Context& ctx, const Var& x, const LayerInput& input, const RopeSpec& of) const;
  Var decode(Context& ctx, const LatentRows& of, const LayerInput& input,
             const AttentionSpec& here) const;
  // Returns fused rows of q, k and v.
  Var heads(Context& ctx, const LatentRows& of, const SequenceLayout& layout,
            const AttentionSpec& here) const;
};

}  // namespace bev
