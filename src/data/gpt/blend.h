// Blended datasets: parsing of blends, and which dataset provides which sample, with Megatron's
// rules and rounding.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/indexed/array_file.h"

namespace bev {

struct Blend {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  // empty: proportional to the datasets' sample counts
};

// Parses "PREFIX..." or "WEIGHT PREFIX WEIGHT PREFIX ..."; otherwise throws Error(kConfig) that
// starts with `flag`.
Blend parse_blend(std::span<const std::string> words, std::string_view flag);

// Weights divided by their sum, which is rounded as numpy's.
std::vector<double> normalize(std::span<const double> weights);

// Samples that a blend takes from a dataset, and samples to prepare: half a percent more.
std::int64_t blend_share(std::int64_t samples, double weight);
std::int64_t blend_share_with_surplus(std::int64_t samples, double weight);

// Dataset index and dataset sample index for each sample of the blend.
class BlendIndex {
 public:
  explicit BlendIndex(ArrayFile arrays) : arrays_(std::move(arrays)) {}
  PackedArray<std::int16_t> datasets() const { return arrays_.array<std::int16_t>(0); }
  PackedArray<std::int64_t> samples() const { return arrays_.array<std::int64_t>(1); }

 private:
  ArrayFile arrays_;
};

// Greedy blending: always takes the dataset that is furthest behind its (normalized) weight, the
// first one on ties. Both functions cache the index in `cache_folder`, unless it is "".
BlendIndex blend_by_weights(std::span<const double> weights, std::int64_t size,
                            const std::string& cache_folder = "");
// The same with the sizes as weights, until every dataset is exhausted.
BlendIndex blend_exhaustively(std::span<const std::int64_t> sizes,
                              const std::string& cache_folder = "");

}  // namespace bev
