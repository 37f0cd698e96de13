// Asynchronous reduction of gradients over a group (reduce-scatter or all-reduce), in the
// gradients' dtype or with bf16 on the wire.
#pragma once

#include <string_view>

#include "parallel/store/shard_plan.h"

namespace bev {

// A reduction in progress. It may take several collectives; each is posted when the previous one is
// done.
class PostedSum {
 public:
  // Waits for the current collective and posts the next; returns false if there is none: the sum is
  // complete.
  bool advance();
  void finish() {
    while (advance()) continue;
  }
  // Whether the current collective holds staging memory, which advance() frees.
  bool staged() const { return !parts_.empty(); }

 private:
  friend class GradientWire;
  const StoreTools* tools_ = nullptr;
  Group* group_ = nullptr;
  std::string_view label_;
  View out_;  // receives beta * out + the sum of `parts_`
  double beta_ = 0;
  View whole_;    // if set, out is all-gathered into it afterwards
  Tensor sent_;   // kept alive until the other ranks have read it
  Tensor parts_;  // the ranks' parts for this rank, one after the other; empty: nothing to add
  Work work_;     // last member, so that it completes before the memory it uses is freed
};

// The group to reduce over, the label of the reduction, and whether it ignores the bf16 wire.
struct SumAmong {
  Group& group;
  std::string_view label;
  bool exact = false;
};

// With a bf16 wire the reduction is an all-to-all of rounded parts, which are added in the
// gradients' dtype in rank order:
//
//   rank 0  [a0 a1] --bf16--+-- a0 + b0 --+          [a0+b0  a1+b1]
//   rank 1  [b0 b1] --bf16--+-- a1 + b1 --+-- fp32-- [a0+b0  a1+b1]
//
// An all-reduce then all-gathers the unrounded sums. Each sum is computed by one rank, so all ranks
// have the same bits, and they equal the bits of a sharded store, which keeps its own shard only.
class GradientWire {
 public:
  explicit GradientWire(const StoreTools& tools) : tools_(tools) {}

  // Reduce-scatter: out = beta * out + the sum over ranks of their parts of `in` that belong to
  // this rank. `hold` keeps `in` alive and is released as soon as no rank reads it. out may alias
  // this rank's part of in.
  PostedSum scatter(const SumAmong& among, const View& in, Tensor hold, const View& out,
                    double beta) const;
  // All-reduce in place.
  PostedSum sum(const SumAmong& among, const View& data) const;

 private:
  bool rounds(const SumAmong& among) const { return tools_.options.bf16_wire && !among.exact; }
  PostedSum start(const SumAmong& among, const View& out, double beta) const;
  void exchange_parts(PostedSum& sum, const View& in) const;

  const StoreTools& tools_;
};

}  // namespace bev
