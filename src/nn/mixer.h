// A token mixer: the part of a layer through which tokens of a sequence see each other (attention,
// latent attention, recurrences). Training and generation run the same forward.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/linear.h"
#include "ops/attention.h"

namespace bev {

// What a mixer keeps of a sequence between the calls of a generation, on one tensor-parallel rank.
struct StateSpec {
  std::int64_t key_columns = 0, value_columns = 0;  // per token, in the model's dtype (a KV cache)
  std::int64_t sequence_elements = 0;               // per sequence, in the wide dtype

  // Bytes that grow with the tokens, and those of a sequence whatever its length.
  std::int64_t bytes_per_token(Dtype dtype) const {
    return (key_columns + value_columns) * static_cast<std::int64_t>(size_of(dtype));
  }
  std::int64_t bytes_per_sequence(Dtype dtype) const {
    return sequence_elements * static_cast<std::int64_t>(size_of(wide_of(dtype)));
  }
};

// The memory of it for the sequences of a generation.
struct LayerState {
  KvRows kv;
  Tensor sequences;  // [sequences, sequence_elements]; DecodeStep::slots says whose rows are whose
};

// Rotary positions of a layer: none, by the model's frequencies, or by those of its local base.
enum class RopeKind : std::uint8_t { kNone, kGlobal, kLocal };

// What a layer gets besides its input. The layout must live until the backward.
struct LayerInput {
  const SequenceLayout* layout = nullptr;
  Tensor rope = {}, rope_local = {};   // cos_sin of the two kinds, where the model has them
  const DecodeStep* decode = nullptr;  // nullptr: training
  LayerState* state = nullptr;         // this layer's, when decoding

  // cos_sin of a layer; empty: its tokens are not rotated.
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
  // On one of `tp` ranks.
  virtual StateSpec state(std::int64_t tp) const = 0;
};

}  // namespace bev
