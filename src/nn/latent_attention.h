// Latent attention: queries, keys and values come of small latents, each with a norm; a part of the
// key carries the position and is shared by all heads. Projections to latents are whole on every
// tensor-parallel rank, those from latents are cut by heads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nn/attention.h"
#include "ops/latent.h"

namespace bev {

class LatentAttention final : public Mixer {
 public:
  LatentAttention(const std::string& name, const AttentionOptions& options);

  CoreAttention core;
  std::optional<Linear> q_down;
  std::optional<Norm> q_norm, kv_norm;
  Linear q_up;  // from the input where there is no q_down
  Linear kv_down, kv_up;
  Linear proj;

  void params(std::vector<Param*>& list) override;
  void linears(std::vector<Linear*>& list) override;
  Var forward(Context& ctx, const Var& x, const LayerInput& input) const override;
  // Latent and rotated key of each token, which all heads share.
  StateSpec state(std::int64_t tp) const override;

 private:
  // What heads are made of: the latent of queries or, without one, the input; that of keys and
  // values; the rotated part of keys.
  struct Source {
    Var q, latent, rope_key;
  };
  class HeadsRecipe;

  LatentSpec spec(const AttentionSpec& attention) const;
  Source source(Context& ctx, const Var& x, const LayerInput& input,
                const AttentionSpec& here) const;
  LatentRows rows(Context& ctx, const Source& from, const LayerInput& input,
                  const AttentionSpec& here) const;
  // `of` says which heads and dims; the layer has the rest, or no such positions.
  Var rotate(Context& ctx, const Var& x, const LayerInput& input, const RopeSpec& of) const;
  Var decode(Context& ctx, const LatentRows& of, const LayerInput& input,
             const AttentionSpec& here) const;
  // Rows q | k | v.
  Var heads(Context& ctx, const LatentRows& of, const SequenceLayout& layout,
            const AttentionSpec& here) const;
};

}  // namespace bev
