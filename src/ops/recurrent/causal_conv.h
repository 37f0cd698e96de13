// Depthwise causal convolution over the tokens of each document, with an optional SiLU.
#pragma once

#include "autograd/tape.h"
#include "ops/recurrent/sequence_spans.h"

namespace bev {

struct CausalConvSpec {
  const Param* weight = nullptr;  // [C, 1, W]
  const Param* bias = nullptr;    // [C]; null: none
  bool silu = true;
  bool regenerate = true;  // the backward computes the result again instead of keeping it
};

// Elements of the state of a sequence: the last W - 1 tokens.
inline std::int64_t conv_state_elements(const CausalConvSpec& spec, std::int64_t channels) {
  return channels * (spec.weight->shape[2] - 1);
}

// x [T, C] -> [T, C]. Decoding: the state is in columns from `first_state` of the rows' states.
// Under context parallelism each rank gets the W - 1 tokens before its spans.
Var causal_conv(Context& ctx, const Var& x, const CausalConvSpec& spec, const RecurrentRows& rows,
                std::int64_t first_state);

}  // namespace bev
