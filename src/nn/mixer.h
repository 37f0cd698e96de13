// Token mixer: the part of a layer in which tokens of a sequence interact (attention, MLA,
// recurrences). Training and generation run the same forward.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/linear.h"
#include "ops/attention/attention.h"

namespace bev {

// Size of a mixer's state per sequence during generation, on one tensor-parallel rank.
struct StateSpec {
  std::int64_t key_columns = 0, value_columns = 0;  // KV cache per token, in the model's dtype
  std::int64_t sequence_elements = 0;  // per sequence (recurrent state), in the wide dtype

  // Bytes per token, and bytes per sequence independent of its length.
  std::int64_t bytes_per_token(Dtype dtype) const {
    return (key_columns + value_columns) * static_cast<std::int64_t>(size_of(dtype));
  }
  std::int64_t bytes_per_sequence(Dtype dtype) const {
    return sequence_elements * static_cast<std::int64_t>(size_of(wide_of(dtype)));
  }
};

// The state of one layer for all sequences of a generation.
struct LayerState {
  KvRows kv;
  Tensor sequences;  // [sequences, sequence_elements]; DecodeStep::slots maps sequences to rows
};

// RoPE of a layer: none, with the global base, or with the local base.
enum class RopeKind : std::uint8_t { kNone, kGlobal, kLocal };

// Inputs of a layer other than the hidden states. The layout must live until the backward.
struct LayerInput {
  const SequenceLayout* layout = nullptr;
  Tensor rope = {}, rope_local = {};   // cos_sin of the two kinds, if the model has them
  Tensor query_scale = {};             // cos_sin that scales the queries, if a layer wants it
  const DecodeStep* decode = nullptr;  // nullptr: training
  LayerState* state = nullptr;         // state of this layer when decoding

  // cos_sin of a layer; empty: no RoPE.
  Tensor rope_of(RopeKind kind) const {
    return kind == RopeKind::kNone ? Tensor() : kind == RopeKind::kLocal ? rope_local : rope;
  }
};

class Mixer {
 public:
  virtual ~Mixer() = default;
  virtual void params(std::vector<Param*>& list) = 0;
  // Linear layers that may compute in FP8.
  virtual void linears(std::vector<Linear*>& list) = 0;
  // [T, H] -> [T, H], both outside of the tensor-parallel region.
  virtual Var forward(Context& ctx, const Var& x, const LayerInput& input) const = 0;
  // Size of the state on this rank.
  virtual StateSpec state(const Context& ctx) const = 0;
};

}  // namespace bev
