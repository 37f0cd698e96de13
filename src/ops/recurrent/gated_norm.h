// Gated RMSNorm of recurrent mixers: over the whole width, groups of columns or heads, with the
// gate silu(z) before or after it, or the gate alone.
#pragma once

#include "autograd/tape.h"

namespace bev {

struct GatedNormSpec {
  // [C] of this rank, or [group_width], shared by the groups; null: only the gate.
  const Param* weight = nullptr;
  std::int64_t group_width = 0;  // columns normalised together, on all ranks
  bool gate_first = true;        // norm(x silu(z)), else norm(x) silu(z)
  double epsilon = 1e-5;
  double offset = 0;
  bool regenerate = true;  // the backward computes the result again instead of keeping it
};

// x, z [T, C], cut over tp in columns -> [T, C]. Groups of which this rank has a part only are
// summed over tp.
Var gated_norm(Context& ctx, const Var& x, const Var& z, const GatedNormSpec& spec);

}  // namespace bev
