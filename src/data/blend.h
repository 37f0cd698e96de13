// Blends of datasets: how they are written down, and which dataset gives which sample, by
// Megatron's rules and with its rounding.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

struct Blend {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  // empty: in proportion to the samples that the datasets have
};

// "PREFIX..." or "WEIGHT PREFIX WEIGHT PREFIX ...". Error(kConfig) starting with `flag` when it is
// neither.
Blend parse_blend(std::span<const std::string> words, std::string_view flag);

// Divided by their sum, which is rounded as numpy's.
std::vector<double> normalize(std::span<const double> weights);

// Samples to use of a dataset in a blend, and to have ready: half a percent more.
std::int64_t blend_share(std::int64_t samples, double weight);
std::int64_t blend_share_with_surplus(std::int64_t samples, double weight);

// For each sample of the blend the dataset, and the sample's number in it.
struct BlendIndex {
  std::vector<std::int16_t> datasets;
  std::vector<std::int64_t> samples;
};

// Always the dataset that is furthest behind its (normalized) weight, the first of equals.
BlendIndex blend_by_weights(std::span<const double> weights, std::int64_t size);
// The same with the sizes as weights, until every dataset is spent.
BlendIndex blend_exhaustively(std::span<const std::int64_t> sizes);

}  // namespace bev
