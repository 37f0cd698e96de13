// Multi-head and grouped-query self-attention (MHA, GQA, MQA): fused QKV projection (gate | q | k |
// v with a gate of the output), optional QK norm, RoPE, attention, output projection. Core
// attention handles context parallelism.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/mixer.h"
#include "nn/qk_norm.h"

namespace bev {

// Context parallelism: ring attention, Ulysses (all-to-all over heads), all-gather of keys and
// values, or Ulysses within a ring.
enum class ContextExchange : std::uint8_t { kRing, kHeads, kGather, kHeadsAndRing };

// Multi-head latent attention (MLA); latent_size 0: plain attention.
struct LatentOptions {
  std::int64_t latent_size = 0;    // rank R of the KV latent
  std::int64_t q_latent_size = 0;  // rank of the query latent; 0: no query latent
  std::int64_t nope_size = 0, rope_size = 0;
  bool norms = true;  // of the latents
  NormOptions norm;
  // The indexer of sparse attention, whose choice is everything here: only its weights are kept.
  std::int64_t indexer_heads = 0, indexer_size = 0;  // 0: none
  bool recompute_up = false;  // recomputes the up-projections from the latents in the backward
};

struct AttentionOptions {
  std::int64_t layer = -1;  // index in the model
  std::int64_t hidden_size = 0, heads = 0, kv_heads = 0;
  std::int64_t head_size = 0, v_head_size = 0;  // of q and k; of v (0: the same)
  bool qkv_bias = false, proj_bias = false;
  bool qk_norm = false;
  QkNorm qk_norm_kind = QkNorm::kHead;
  NormOptions norm = {};
  AttentionRule rule = {};
  RopeKind rope = RopeKind::kGlobal;
  bool rotary_interleaved = false;
  bool scaled_queries = false;  // by LayerInput::query_scale
  bool output_gate = false;     // outputs of heads times the sigmoid of a projection of the input
  double init_std = 0.02, proj_init_std = 0.02;
  bool recompute_core = false;
  ContextExchange context = ContextExchange::kRing;
  TensorParallel tensor_parallel = {};
  LatentOptions latent = {};
};

// Core attention: from fused rows of q, k and v to the outputs of the heads, with any context
// parallelism.
struct CoreAttention {
  CoreAttention(const std::string& name, const AttentionOptions& options);

  AttentionOptions options;
  std::optional<Param> sinks;  // learned sink logits [N], split over tp

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
  StateSpec state(const Context& ctx) const override;

 private:
  Var normalise(Context& ctx, const Var& rows, const AttentionSpec& here) const;
  // Normalised and rotated rows q | k | v.
  Var prepare(Context& ctx, Var rows, const LayerInput& input, const AttentionSpec& here) const;
};

}  // namespace bev
