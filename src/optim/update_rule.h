// The interface behind which an optimizer is one small file: what it keeps for a weight, and how it
// updates the ranges that this rank owns. Optimizers of whole matrices add a MatrixRule
// (optim/matrix_rule.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "autograd/context.h"
#include "optim/config.h"
#include "optim/state_memory.h"

namespace bev {

// A contiguous range of one parameter's local elements that this rank updates.
struct OptimRange {
  const Param* param = nullptr;
  std::int64_t offset = 0;  // in the flattened local parameter
  View value;               // flat, the model's dtype
  View grad;                // flat, the gradient dtype
  // Whether norms and other sums over the model include the range. Over all ranks every element is
  // in exactly one counted range.
  bool counted = true;
};

// A range with its master weights and moments.
struct RuleRange {
  const OptimRange* range = nullptr;
  View main;
  RangeState state;
  std::int64_t updates_before = 0;  // before its moments began; see Optimizer::late_starts

  const Param& param() const { return *range->param; }
};

// The optimizer that updates a parameter: that of the configuration, or its scalar optimizer.
OptimizerKind rule_of(const OptimConfig& config, const Param& param);
// Whether an optimizer updates whole matrices.
bool needs_matrices(OptimizerKind kind);
// A weight of a linear layer, or such weights of experts; no embedding and no output layer.
bool is_hidden_matrix(const Param& param);

// MuP: divides learning rate and epsilon of hidden matrices by `width`, where their optimizer makes
// updates of one size whatever the gradient's is (Adam, Lion, SOAP).
void scale_rates(const OptimConfig& config, double width, std::span<Param* const> params);

class UpdateRule {
 public:
  explicit UpdateRule(std::vector<RuleRange> ranges) : ranges_(std::move(ranges)) {}
  virtual ~UpdateRule() = default;

  // One update with the learning rates, weight decay, gradient multiplier and skip flag of
  // ctx.step.
  virtual void step(Context& ctx) = 0;
  // Sets updates_before of the ranges by the names of their parameters.
  void set_late_starts(const std::map<std::string, std::int64_t>& updates);

 protected:
  // Called when ranges_ has changed.
  virtual void ranges_changed() {}
  std::vector<RuleRange> ranges_;
};

// Each rule is made by a function of its own file.
std::unique_ptr<UpdateRule> make_adam(const OptimConfig& config, std::vector<RuleRange> ranges);
std::unique_ptr<UpdateRule> make_sgd(const OptimConfig& config, std::vector<RuleRange> ranges);
std::unique_ptr<UpdateRule> make_lion(const OptimConfig& config, std::vector<RuleRange> ranges);
// Sign updates of parameters with a sign_rate.
std::unique_ptr<UpdateRule> make_sign(const OptimConfig& config, std::vector<RuleRange> ranges);

}  // namespace bev
