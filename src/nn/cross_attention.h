// Cross attention: the tokens of one sequence attend to the hidden states of another, as a decoder
// attends to its encoder.
#pragma once

#include <string>
#include <vector>

#include "nn/attention.h"

namespace bev {

// The other sequence: states [T, H] outside of the tensor-parallel region, and their layout. The
// layout must live until the backward.
struct CrossInput {
  const Var& states;
  const SequenceLayout& layout;
};

class CrossAttention {
 public:
  // Uses the sizes, biases, scale, softcap, initialisation and tensor parallelism of the options.
  CrossAttention(const std::string& name, const AttentionOptions& options);

  void params(std::vector<Param*>& list);
  void linears(std::vector<Linear*>& list);
  // x [T, H] -> [T, H], both outside of the tensor-parallel region. Document i of x attends to all
  // tokens of document i of the other sequence. With context parallelism every cp rank computes
  // whole sequences.
  Var forward(Context& ctx, const Var& x, const SequenceLayout& layout, const CrossInput& to) const;

 private:
  CoreAttention core_;
  Linear q_, kv_, proj_;
};

}  // namespace bev
