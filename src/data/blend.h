// Blends of datasets: how they are written down, and which dataset gives which sample, by
// Megatron's rules and with its rounding.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/array_file.h"

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
class BlendIndex {
 public:
  explicit BlendIndex(ArrayFile arrays) : arrays_(std::move(arrays)) {}
  PackedArray<std::int16_t> datasets() const { return arrays_.array<std::int16_t>(0); }
  PackedArray<std::int64_t> samples() const { return arrays_.array<std::int64_t>(1); }

 private:
  ArrayFile arrays_;
};

// Both are kept in `cache_folder`, unless it is "".
// Always the dataset that is furthest behind its (normalized) weight, the first of equals.
BlendIndex blend_by_weights(std::span<const double> weights, std::int64_t size,
                            const std::string& cache_folder = "");
// The same with the sizes as weights, until every dataset is spent.
BlendIndex blend_exhaustively(std::span<const std::int64_t> sizes,
                              const std::string& cache_folder = "");

}  // namespace bev
