#include "parallel/router_load.h"

#include <algorithm>
#include <cmath>

#include "models/model.h"

namespace bev {

namespace {
// Nearest-rank percentile: the smallest value that at least this fraction of values does not
// exceed.
double percentile(std::span<const double> sorted, double share) {
  double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
}
}  // namespace

bool has_routers(const ModelConfig& model) {
  return model.moe.any() && std::ranges::any_of(layer_specs(model), [](const LayerSpec& spec) {
           return spec.feed_forward == FeedForwardKind::kExperts;
         });
}

Shape router_sums_shape(const ModelConfig& model) {
  return {model.num_layers + model.mtp_num_layers, 2 * model.moe.num_experts + 3};
}

std::vector<RouterLoad> router_loads(const ModelConfig& model, std::span<const double> sums) {
  std::vector<RouterLoad> loads;
  auto experts = static_cast<std::size_t>(model.moe.num_experts), width = 2 * experts + 3;
  std::vector<LayerSpec> specs = layer_specs(model);
  for (std::int64_t layer = 0; layer < std::ssize(specs) + model.mtp_num_layers; ++layer) {
    // MTP layers are like the last layer.
    const LayerSpec& spec = specs[static_cast<std::size_t>(std::min(layer, std::ssize(specs) - 1))];
    if (spec.feed_forward != FeedForwardKind::kExperts) continue;
    std::span<const double> row = sums.subspan(static_cast<std::size_t>(layer) * width, width);
    std::vector<double> counts(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(experts));
    double chosen = 0, product = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      chosen += counts[e];
      product += counts[e] * row[experts + e];
    }
    double tokens = std::max(chosen / static_cast<double>(model.moe.topk), 1.0);
    std::ranges::sort(counts);
    RouterLoad load;
    load.layer = layer;
    load.tokens_min = counts.front();
    load.tokens_p50 = percentile(counts, 0.5);
    load.tokens_p99 = percentile(counts, 0.99);
    load.tokens_max = counts.back();
    load.balance_loss = static_cast<double>(experts) * product / std::max(chosen * tokens, 1.0);
    load.z_loss = row[2 * experts] / tokens;
    load.entropy = row[2 * experts + 1] / tokens;
    load.dropped = row[2 * experts + 2] / std::max(chosen, 1.0);
    loads.push_back(load);
  }
  return loads;
}

RouterStatistics router_statistics(const Context& ctx, const ModelConfig& model, const View& sums) {
  RouterStatistics out{sums, {}};
  if (sums.empty() || model.moe_training.coefficient("global_aux_loss") == 0) return out;
  Shape counts{sums.shape[0], model.moe.num_experts};
  out.global_counts = ctx.allocate(ctx.wide(), counts, "step");
  return out;
}

}  // namespace bev
