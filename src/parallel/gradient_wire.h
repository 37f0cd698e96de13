// Sums of gradients over a group, posted and finished later, in the gradients' dtype or with bf16
// on the wire.
#pragma once

#include <string_view>

#include "parallel/shard_plan.h"

namespace bev {

// A sum on its way. It may take several exchanges; each is posted when the one before is done.
class PostedSum {
 public:
  // Waits for the exchange at hand and posts the next; false when there is none: the sum is there.
  bool advance();
  void finish() {
    while (advance()) continue;
  }
  // The exchange at hand has memory of its own; advance() gives it back.
  bool staged() const { return !parts_.empty(); }

 private:
  friend class GradientWire;
  const StoreTools* tools_ = nullptr;
  Group* group_ = nullptr;
  std::string_view label_;
  View out_;  // receives the sum of `parts_`, added to beta * out
  double beta_ = 0;
  View whole_;    // then out is gathered into it; empty: not
  Tensor sent_;   // held for the others to read
  Tensor parts_;  // the members' parts for this rank, one after the other; empty: none to add
  Work work_;     // last, so that it ends before the memory it uses
};

// The ranks that sum, what the sum is called, and whether it travels unrounded whatever the rest
// does.
struct SumAmong {
  Group& group;
  std::string_view label;
  bool exact = false;
};

// With bf16 a sum is an exchange of rounded parts, added here in the gradients' dtype in rank
// order:
//
//   rank 0  [a0 a1] --bf16--+-- a0 + b0 --+          [a0+b0  a1+b1]
//   rank 1  [b0 b1] --bf16--+-- a1 + b1 --+-- fp32-- [a0+b0  a1+b1]
//
// The sums themselves travel unrounded where all need them. Each is computed by one rank, so all
// have the same bits; and they are the bits that a sharded store has, which keeps its own only.
class GradientWire {
 public:
  explicit GradientWire(const StoreTools& tools) : tools_(tools) {}

  // out = beta * out + the sum of the members' equal parts of `in` that belong to this rank. `hold`
  // keeps `in` alive, and is let go as soon as nobody reads it. out may be this rank's part of in.
  PostedSum scatter(const SumAmong& among, const View& in, Tensor hold, const View& out,
                    double beta) const;
  // In place.
  PostedSum sum(const SumAmong& among, const View& data) const;

 private:
  bool rounds(const SumAmong& among) const { return tools_.options.bf16_wire && !among.exact; }
  PostedSum start(const SumAmong& among, const View& out, double beta) const;
  void exchange_parts(PostedSum& sum, const View& in) const;

  const StoreTools& tools_;
};

}  // namespace bev
