// Cross attention: the tokens of one sequence attend to the states of another, as a decoder to its
// encoder's.
#pragma once

#include <string>
#include <vector>

#include "nn/attention.h"

namespace bev {

// The other sequence: states [T, H] outside of the tensor-parallel region, and its tokens. The
// layout must live until the backward.
struct CrossInput {
  const Var& states;
  const SequenceLayout& layout;
};

class CrossAttention {
 public:
  // Uses the options' sizes, biases, scale, softcap, initial values and layout.
  CrossAttention(const std::string& name, const AttentionOptions& options);

  void params(std::vector<Param*>& list);
  void linears(std::vector<Linear*>& list);
  // x [T, H] -> [T, H], both outside of the tensor-parallel region. Document i of x's tokens sees
  // all tokens of document i of the other sequence. With context parallelism every rank of cp
  // computes whole sequences.
  Var forward(Context& ctx, const Var& x, const SequenceLayout& layout, const CrossInput& to) const;

 private:
  CoreAttention core_;
  Linear q_, kv_, proj_;
};

}  // namespace bev
