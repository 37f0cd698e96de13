#include "parallel/objective.h"

#include "base/text.h"
#include "kernels/loss.h"
#include "ops/collective.h"
#include "ops/elementwise.h"
#include "ops/loss.h"

namespace bev {

std::vector<std::string> NextToken::terms() const {
  std::vector<std::string> names = {"lm loss"};
  for (std::int64_t depth = 1; depth <= depths_; ++depth) {
    names.push_back(concat("mtp_", depth, " loss"));
  }
  return names;
}

void NextToken::add_weights(const Context&, const MicroBatch& batch,
                            std::span<double> weights) const {
  weights[0] += batch.targets.weight_sum;
  for (std::size_t depth = 0; depth < batch.mtp.size(); ++depth) {
    weights[depth + 1] += batch.mtp[depth].targets.weight_sum;
  }
}

Var NextToken::loss(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                    std::span<const Var> outputs, double* sums) const {
  Var total;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const LossTargets& targets = i == 0 ? batch.targets : batch.mtp[i - 1].targets;
    Var whole = enter_tensor_parallel(ctx, outputs[i], batch.layout.tokens);
    LossResult result = lm_head_loss(ctx, whole, targets, stage.head());
    total = i == 0 ? result.loss : add(ctx, total, result.loss);
    // The tp ranks of the stage have the same losses; one of them counts.
    if (ctx.mesh.tp().rank() != 0) continue;
    ctx.kernels.loss.total(ctx.stream, {result.token_loss, targets.weights.as<float>(), sums + i});
  }
  return total;
}

}  // namespace bev
