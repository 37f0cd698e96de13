// Logits of a whole model on one rank.
#pragma once

#include <vector>

#include "parallel/rank_model.h"

namespace bev::test {

// [T, V] in the wide dtype, by a plain forward of a model with one stage.
inline Tensor whole_logits(RankModel& model, const MicroBatch& batch) {
  std::vector<Var> outputs;
  model.stage().forward(model.ctx(), batch, {}, outputs);
  return stage_logits(model.ctx(), model.stage(), outputs[0], batch.layout.tokens);
}

}  // namespace bev::test
