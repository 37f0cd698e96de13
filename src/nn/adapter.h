// Low-rank adapters (LoRA): a linear layer with an adapter computes y = W x + scale * B (A x).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/param.h"

namespace bev {

struct AdapterOptions {
  std::int64_t rank = 0;  // 0: no adapter
  double alpha = 0;       // the scale is alpha / rank; 0: the scale is 1
};

// The factors A and B. A is initialised at random and B with zeros, so that a new adapter changes
// nothing.
struct LowRank {
  Param a, b;
  double scale = 1;

  void params(std::vector<Param*>& list) { list.insert(list.end(), {&a, &b}); }
};

// The adapter of a weight [out, in] or [experts, out, in]. The factor that has the weight's
// tensor-parallel dim is split like the weight; the other one is replicated.
LowRank make_low_rank(const Param& weight, const AdapterOptions& options);

// Whether a parameter belongs to an adapter.
bool is_adapter(const Param& param);

}  // namespace bev
