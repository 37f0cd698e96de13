// Overlap of expert-parallel communication with compute of another micro-batch. The forward of one
// runs normally, and the backward of the other advances step by step inside it, at the forward's
// yield points:
//
//   forward   ..., start an all-to-all, yield            finish the all-to-all, ...
//   backward                                  run until it yields itself
//
// The interleaving follows from the model alone, so all ranks issue collectives in the same order.
#pragma once

namespace bev {

struct Context;

// The backward of the other micro-batch.
class InterleavedBackward {
 public:
  virtual ~InterleavedBackward() = default;
  // Runs to its next yield point, or to its end.
  virtual void run_until_yield() = 0;
};

// Yield point: call it after a collective is started and before its wait. Runs the context's
// partner, if any, and records on the tape that the backward yields here as well.
void yield_to_partner(Context& ctx);

}  // namespace bev
