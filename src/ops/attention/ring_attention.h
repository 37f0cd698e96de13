// Context-parallel attention: ring attention, or an all-gather of keys and values. Every rank keeps
// its own queries; the K/V blocks of all ranks pass around the ring or are gathered at once.
#pragma once

#include "ops/attention/attention.h"

namespace bev {

struct RingAttentionSpec {
  Group* group = nullptr;              // ranks that share the keys of the sequences
  const ContextRows* rows = nullptr;   // tokens of each of them
  const TokenSet* gathered = nullptr;  // tokens of all ranks: all-gather K/V; nullptr: ring
};

// qkv [T, N D + K D + K V] of this rank's tokens -> [T, N V]. Context and layout must live until
// the backward.
Var ring_attention(Context& ctx, const Var& qkv, const RingAttentionSpec& context,
                   const AttentionSpec& spec);

}  // namespace bev
