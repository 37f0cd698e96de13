// A pairwise objective over log-probabilities (DPO): the first of two samples should gain more over
// a frozen reference model than the second,
//
//   loss = -log sigmoid(beta ((c - c_ref) - (r - r_ref)))
//
// where c and r are the summed log-probabilities of the chosen and the rejected sample.
#include <cmath>

#include "kernels/device.h"
#include "ops/collective.h"
#include "ops/objective.h"
#include "ops/token_log_probs.h"
#include "tests/layouts/slices.h"

namespace bev::test {

Var sample_log_probs(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                     const Var& final) {
  Var hidden = enter_tensor_parallel(ctx, final, batch.layout.tokens);
  Var tokens = token_log_probs(ctx, hidden, batch.targets.targets, stage.head());
  return sum_by_sample(ctx, tokens, batch.layout);
}

namespace {

class Pairwise final : public Objective {
 public:
  std::vector<std::string> terms() const override { return {"dpo loss", "accuracy"}; }
  bool capturable() const override { return false; }

  void add_weights(const Context& ctx, const MicroBatch& batch,
                   std::span<double> weights) const override {
    if (ctx.mesh.cp().rank() != 0) return;
    for (double& weight : weights) weight += static_cast<double>(batch.layout.sample_count / 2);
  }

  Var loss(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
           std::span<const Var> outputs, double* sums) const override {
    Var policy = sample_log_probs(ctx, stage, batch, outputs[0]);
    auto logps = ctx.download<double>(policy.tensor);
    auto reference = ctx.download<double>(batch.field(kReferenceLogProbs).tensor);
    double factor = ctx.download<double>(factor_view(ctx)).front();
    std::vector<double> gradient(logps.size());
    double loss = 0, right = 0;
    for (std::size_t i = 0; i + 1 < logps.size(); i += 2) {
      double margin = (logps[i] - reference[i]) - (logps[i + 1] - reference[i + 1]);
      loss += std::log1p(std::exp(-kPairwiseBeta * margin));
      right += margin > 0 ? 1 : 0;
      gradient[i] = -factor * kPairwiseBeta / (1 + std::exp(kPairwiseBeta * margin));
      gradient[i + 1] = -gradient[i];
    }
    bool counts = ctx.mesh.tp().rank() == 0 && ctx.mesh.cp().rank() == 0;
    if (counts) add_to(ctx, sums, {loss, right});
    std::vector<double> scaled = {factor * loss};
    return given_gradient(ctx, "pairwise", policy, ctx.upload<double>(scaled, "loss"),
                          ctx.upload<double>(gradient, "gradients"));
  }

 private:
  static View factor_view(const Context& ctx) {
    return {const_cast<double*>(&ctx.step->loss_factor), Dtype::kF64, {1}};
  }
  static void add_to(Context& ctx, double* sums, const std::vector<double>& terms) {
    View at{sums, Dtype::kF64, {static_cast<std::int64_t>(terms.size())}};
    auto all = ctx.download<double>(at);
    for (std::size_t i = 0; i < terms.size(); ++i) all[i] += terms[i];
    ctx.kernels.device.upload(ctx.stream, all.data(), at);
  }
};

const Pairwise kPairwise;

}  // namespace

const Objective& pairwise_objective() { return kPairwise; }

}  // namespace bev::test
