// QK-clip (MuonClip, Kimi K2, arXiv 2507.20534): where the largest attention logit of a step is
// above a threshold, the weights of queries and keys are scaled down after the update, so that
// logits stay bounded. Per group of heads that share a key head, as in Megatron Core; biases are
// not scaled.
#pragma once

#include <map>
#include <vector>

#include "optim/matrix_updates.h"

namespace bev {

class QkClip {
 public:
  // `shared` are all trained parameters, `ranges` those of weights with Param::logits.
  QkClip(Context& ctx, const QkClipConfig& config, const std::vector<SharedParam>& shared,
         std::vector<RuleRange> ranges);

  // Scales master weights and values by ctx.max_logits, unless the step is skipped.
  void step(Context& ctx) const;

 private:
  // What becomes of each local row of a weight.
  struct Rows {
    Tensor groups, powers;
  };
  Rows rows_of(Context& ctx, const Param& param) const;

  QkClipConfig config_;
  std::vector<RuleRange> ranges_;
  std::map<const Param*, Rows> rows_;
};

}  // namespace bev
