#include "data/gpt/blended_splits.h"

#include <algorithm>
#include <numeric>

namespace bev {

std::pair<std::int64_t, std::int64_t> SplitPart::range(std::int64_t total) const {
  std::array<std::int64_t, 4> bounds = split_bounds(weights, total);
  auto at = static_cast<std::size_t>(split);
  return {bounds[at], bounds[at + 1]};
}

std::optional<SplitPlan> plan_split(const GptSources& sources, const SplitSizes& sizes,
                                    DataSplit split) {
  // A separate blend of a split uses all of its files.
  constexpr std::array<const char*, 3> kWhole = {"1", "0,1", "0,0,1"};
  const auto at = static_cast<std::size_t>(split);
  if (!sizes[at]) return std::nullopt;
  const std::int64_t samples = *sizes[at];
  const std::optional<Blend>& blend = sources.shared ? sources.shared : sources.own[at];
  BEV_CHECK(blend || samples <= 0, ErrorKind::kConfig, "there is no ", name_of(split),
            " data, but ", samples, " samples are asked of it");
  if (!blend) return std::nullopt;
  SplitPlan plan;
  plan.part = {split, sources.shared ? sources.split : kWhole[at]};
  constexpr std::int64_t kMuch = std::int64_t{1} << 52;  // any nonzero share gets some of it
  auto [first, end] = plan.part.range(kMuch);
  if (first == end) {
    BEV_CHECK(samples <= 0, ErrorKind::kInput, "the ", name_of(split), " split (",
              plan.part.weights, ") has no share of the data, but ", samples,
              " samples are asked of it");
    return std::nullopt;
  }
  plan.blend = {blend->prefixes, normalize(blend->weights)};
  plan.samples = samples;
  // Megatron ignores the weight of a single dataset, unless it comes from --data-path.
  plan.plain = blend->prefixes.size() == 1 && (blend->weights.empty() || !sources.shared);
  if (plan.plain) return plan;
  BEV_CHECK(blend->weights.empty() || samples != kOneEpoch, ErrorKind::kConfig, name_of(split),
            " data: a blend by weights needs a number of samples");
  plan.wanted.assign(blend->prefixes.size(), kOneEpoch);
  for (std::size_t i = 0; i < plan.blend.weights.size(); ++i) {
    plan.wanted[i] = blend_share_with_surplus(samples, plan.blend.weights[i]);
  }
  return plan;
}

BlendIndex blend_datasets(const SplitPlan& plan, std::span<const std::int64_t> sizes,
                          const std::string& cache_folder) {
  if (!plan.blend.weights.empty()) {
    std::int64_t size = 0;
    for (double weight : plan.blend.weights) size += blend_share(plan.samples, weight);
    // Normalized twice, because Megatron does so and rounds twice.
    return blend_by_weights(normalize(plan.blend.weights), size, cache_folder);
  }
  if (plan.samples == kOneEpoch) return blend_exhaustively(sizes, cache_folder);
  std::int64_t size = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  std::vector<double> weights(sizes.begin(), sizes.end());
  return blend_by_weights(normalize(weights), std::min(plan.samples, size), cache_folder);
}

std::vector<std::int64_t> blend_counts(const BlendIndex& blend, std::size_t datasets) {
  std::vector<std::int64_t> counts(datasets);
  PackedArray<std::int16_t> chosen = blend.datasets();
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    auto dataset = static_cast<std::size_t>(chosen[i]);
    BEV_CHECK(dataset < datasets, ErrorKind::kInput, "the blend index has dataset ", chosen[i],
              " of ", datasets, " at sample ", i);
    ++counts[dataset];
  }
  return counts;
}

}  // namespace bev
