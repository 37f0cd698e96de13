// Self-attention: fused QKV, optional per-head norm, rotary positions, attention, output
// projection.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/mixer.h"

namespace bev {

// How attention sees the tokens of other context-parallel ranks.
enum class ContextExchange : std::uint8_t { kRing, kHeads, kGather, kHeadsAndRing };

// Latent attention; latent_size 0: plain attention.
struct LatentOptions {
  std::int64_t latent_size = 0;    // R of keys and values
  std::int64_t q_latent_size = 0;  // of queries; 0: they come straight from the input
  std::int64_t nope_size = 0, rope_size = 0;
  bool norms = true;  // of the latents
  NormOptions norm;
  bool recompute_up = false;  // heads are made of latents again in the backward
};

struct AttentionOptions {
  std::int64_t hidden_size = 0, heads = 0, kv_heads = 0;
  std::int64_t head_size = 0, v_head_size = 0;  // of q and k; of v, 0: the same
  bool qkv_bias = false, proj_bias = false;
  bool qk_norm = false;
  NormOptions norm = {};
  AttentionRule rule = {};
  RopeKind rope = RopeKind::kGlobal;
  bool rotary_interleaved = false;
  double init_std = 0.02, proj_init_std = 0.02;
  bool recompute_core = false;
  ContextExchange context = ContextExchange::kRing;
  TensorParallel tensor_parallel = {};
  LatentOptions latent = {};
};

// From rows q | k | v to the heads' results, wherever the tokens are.
struct CoreAttention {
  CoreAttention(const std::string& name, const AttentionOptions& options);

  AttentionOptions options;
  std::optional<Param> sinks;  // [N], cut over tp

  void params(std::vector<Param*>& list);
  AttentionSpec spec(const Context& ctx) const;
  Var forward(Context& ctx, const Var& rows, const SequenceLayout& layout,
              const AttentionSpec& spec) const;

 private:
  Var attend(Context& ctx, const Var& rows, const SequenceLayout& layout,
             const AttentionSpec& spec) const;
  Var exchange_and_attend(Context& ctx, const Var& rows, const SequenceLayout& layout,
                          const AttentionSpec& spec) const;
};

std::unique_ptr<Mixer> make_attention(const std::string& name, const AttentionOptions& options);

class SelfAttention final : public Mixer {
 public:
  SelfAttention(const std::string& name, const AttentionOptions& options);

  CoreAttention core;
  Linear qkv, proj;
  std::optional<Norm> q_norm, k_norm;

  void params(std::vector<Param*>& list) override;
  void linears(std::vector<Linear*>& list) override;
  Var forward(Context& ctx, const Var& x, const LayerInput& input) const override;
  StateSpec state(std::int64_t tp) const override;
};

}  // namespace bev
