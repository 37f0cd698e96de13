// MoE router statistics of a step, by layer: how evenly the experts were used.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/config.h"
#include "ops/moe/moe.h"

namespace bev {

// Statistics over all tokens of the global batch.
struct RouterLoad {
  std::int64_t layer = 0;
  double tokens_min = 0, tokens_p50 = 0, tokens_p99 = 0, tokens_max = 0;  // over the experts
  double balance_loss = 0;  // E / (k T^2) * the sum of count * sum of scores; 1 if all are equal
  double z_loss = 0;        // mean of logsumexp(logits)^2
  double entropy = 0;       // mean entropy of the scores; log(E) for a uniform router
  double dropped = 0;       // fraction of the choices that experts over capacity dropped
};

// Calls use(name, value) for each statistic of a layer.
template <class Use>
void for_numbers(const RouterLoad& load, const Use& use) {
  use("tokens_min", load.tokens_min);
  use("tokens_p50", load.tokens_p50);
  use("tokens_p99", load.tokens_p99);
  use("tokens_max", load.tokens_max);
  use("load_balancing_loss", load.balance_loss);
  use("z_loss", load.z_loss);
  use("entropy", load.entropy);
  use("dropped", load.dropped);
}

// Whether any layer has experts.
bool has_routers(const ModelConfig& model);
// The shape of RouterStatistics::sums.
Shape router_sums_shape(const ModelConfig& model);
// Converts the rows of RouterStatistics::sums; layers without experts are omitted.
std::vector<RouterLoad> router_loads(const ModelConfig& model, std::span<const double> sums);

// Statistics that use `sums` as their memory and allocate the rest, uninitialised; empty if `sums`
// is empty.
RouterStatistics router_statistics(const Context& ctx, const ModelConfig& model, const View& sums);

}  // namespace bev
