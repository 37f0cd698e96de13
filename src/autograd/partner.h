// Two micro-batches that take turns: while one has an exchange between ranks under way, the other
// computes. The forward of one runs as it is, and the backward of the other goes on step by step
// inside of it, wherever the forward gives way:
//
//   forward   ..., start an exchange, give way           finish the exchange, ...
//   backward                                  go on until it gives way itself
//
// Who runs when follows from the model alone, so ranks that meet in collectives meet in one order.
#pragma once

namespace bev {

struct Context;

// The other micro-batch.
class Partner {
 public:
  virtual ~Partner() = default;
  // Runs until it gives way, or to its end.
  virtual void go_on() = 0;
};

// Said after an exchange was started and before it is waited for. Lets the context's partner go on,
// where there is one, and notes on the tape that the backward gives way here as well.
void give_way(Context& ctx);

}  // namespace bev
