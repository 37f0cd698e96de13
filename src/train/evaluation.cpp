#include "train/evaluation.h"

#include <limits>
#include <utility>

namespace bev {

namespace {

std::optional<double> evaluate_set(Engine& engine, const EvalSet& set, const EvalBatch& batch,
                                   const ReadAhead& ahead, FunctionRef<bool()> stop) {
  Context& ctx = engine.model().ctx();
  MtpSpec mtp = mtp_spec(engine.model().options().model);
  double loss = 0, weights = 0;
  auto add = [&](StepBatch step) {
    engine.prepare(step.micro_batches);
    StepResult result = engine.evaluate(step.micro_batches);
    bool by_samples = engine.objective().by_samples();
    double weight = by_samples ? static_cast<double>(step.samples) : result.tokens;
    loss += result.loss * weight;
    weights += weight;
  };
  std::int64_t whole = set.samples / batch.global, read = whole * batch.global;
  if (whole > 0) {
    BatchSpec spec{.micro_batch_size = batch.micro,
                   .data_parallel_size = batch_ranks(ctx.mesh.shape()),
                   .global_batch_size = batch.global};
    Loader loader(ctx, set.data, set.order, BatchSchedule(spec), 0, ahead, mtp);
    for (std::int64_t i = 0; i < whole; ++i) {
      add(loader.next(ctx));
      if (stop()) return std::nullopt;
    }
  }
  // The last batch may be short, and need not be divisible among the ranks.
  std::vector<TokenSample> rest;
  for (; read < set.samples; ++read) rest.push_back(set.data->sample(read));
  if (set.data->joins()) join_batch(*set.data, rest);
  StepBatch last{.micro_batches = {}, .samples = std::ssize(rest)};
  if (!rest.empty()) {
    last.micro_batches = rank_micro_batches(ctx, rest, batch.micro, mtp);
    add(std::move(last));
  }
  return weights > 0 ? loss / weights : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

double mean_loss(std::span<const EvalResult> results) {
  double sum = 0;
  for (const EvalResult& result : results) sum += result.loss;
  return sum / static_cast<double>(results.size());
}

std::optional<std::vector<EvalResult>> evaluate_sets(Engine& engine, const char* split,
                                                     std::span<const EvalSet> sets,
                                                     const EvalBatch& batch, const ReadAhead& ahead,
                                                     FunctionRef<bool()> stop) {
  std::vector<EvalResult> results;
  for (const EvalSet& set : sets) {
    std::optional<double> loss = evaluate_set(engine, set, batch, ahead, stop);
    if (!loss) return std::nullopt;
    results.push_back({split, set.name, *loss});
  }
  return results;
}

}  // namespace bev
