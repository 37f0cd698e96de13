// Self-attention: fused QKV, optional per-head norm, rotary positions, attention, output
// projection.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/linear.h"
#include "ops/attention.h"

namespace bev {

// Keys and values of one layer between the calls of a generation.
struct LayerState {
  KvRows kv;
};

// What a layer gets besides its input. The layout must live until the backward.
struct LayerInput {
  const SequenceLayout* layout = nullptr;
  Tensor rope;                         // cos_sin for full layers; empty: no rotary positions
  Tensor rope_local;                   // for windowed layers; may be the same
  const DecodeStep* decode = nullptr;  // nullptr: training
  LayerState* state = nullptr;         // this layer's, when decoding
};

// How attention sees the tokens of other context-parallel ranks.
enum class ContextExchange : std::uint8_t { kRing, kHeads, kGather, kHeadsAndRing };

struct AttentionOptions {
  std::int64_t hidden_size = 0, heads = 0, kv_heads = 0, head_size = 0;
  bool qkv_bias = false, proj_bias = false;
  bool qk_norm = false;
  NormOptions norm;
  double scale = 1, softcap = 0;
  std::int64_t window = -1;
  bool causal = true;
  bool rotary_interleaved = false;
  double dropout = 0;
  double init_std = 0.02, proj_init_std = 0.02;
  bool recompute_core = false;
  ContextExchange context = ContextExchange::kRing;
  TensorParallel tensor_parallel;
};

struct SelfAttention {
  SelfAttention(const std::string& name, const AttentionOptions& options);

  AttentionOptions options;
  Linear qkv, proj;
  std::optional<Norm> q_norm, k_norm;

  void params(std::vector<Param*>& list);
  // [T, H] -> [T, H], both outside of the tensor-parallel region.
  Var forward(Context& ctx, const Var& x, const LayerInput& input) const;

 private:
  AttentionSpec spec(const Context& ctx) const;
  Var attend(Context& ctx, const Var& rows, const SequenceLayout& layout,
             const AttentionSpec& spec) const;
  Var exchange_and_attend(Context& ctx, const Var& rows, const SequenceLayout& layout,
                          const AttentionSpec& spec) const;
};

}  // namespace bev
