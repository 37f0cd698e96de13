// Attention of sequences whose tokens are cut over ranks: every rank keeps its queries, and the
// keys and values of all come by, block after block around a ring or gathered at once.
#pragma once

#include "ops/attention.h"

namespace bev {

struct ContextSpec {
  Group* group = nullptr;              // the ranks that share the sequences' keys
  const ContextRows* rows = nullptr;   // what each of them holds
  const TokenSet* gathered = nullptr;  // the tokens of all: gather them; nullptr: a ring
};

// qkv [T, N D + K D + K V] of this rank's set -> [T, N V]. Spec and layout must live until the
// backward.
Var context_attention(Context& ctx, const Var& qkv, const ContextSpec& context,
                      const AttentionSpec& spec);

}  // namespace bev
