#include "data/gpt/blend.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "data/indexed/content_hash.h"

namespace bev {

namespace {

std::optional<double> read_weight(std::string_view text) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// numpy's pairwise summation: eight partial sums within blocks of 128, recursive halves above.
double pairwise_sum(std::span<const double> values) {
  if (values.size() < 8) return std::accumulate(values.begin(), values.end(), 0.0);
  if (values.size() > 128) {
    std::size_t half = values.size() / 2 / 8 * 8;
    return pairwise_sum(values.first(half)) + pairwise_sum(values.subspan(half));
  }
  std::array<double, 8> sums;
  std::copy_n(values.begin(), 8, sums.begin());
  std::size_t i = 8;
  for (; i + 8 <= values.size(); i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) sums[lane] += values[i + lane];
  }
  double total =
      ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  for (; i < values.size(); ++i) total += values[i];
  return total;
}

// Draws samples one by one; a dataset is removed when it reaches its limit.
ArrayFile draw(std::span<const double> weights, std::int64_t size,
               std::span<const std::int64_t> limits) {
  BEV_CHECK(weights.size() <= std::numeric_limits<std::int16_t>::max(), ErrorKind::kConfig,
            "a blend of ", weights.size(), " datasets is too large; use at most 32767");
  ArrayFile out(std::array<ArrayFile::Shape, 2>{{{size, 2}, {size, 8}}});
  std::span<std::int16_t> datasets = out.fill<std::int16_t>(0);
  std::span<std::int64_t> samples = out.fill<std::int64_t>(1);
  std::vector<std::int64_t> counts(weights.size());
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (limits.empty() || limits[i] > 0) open.push_back(i);
  }
  for (std::int64_t sample = 0; sample < size; ++sample) {
    double at = std::max(static_cast<double>(sample), 1.0);
    std::size_t best = open[0];
    double most = std::numeric_limits<double>::lowest();
    for (std::size_t i : open) {
      double deficit = weights[i] * at - static_cast<double>(counts[i]);
      if (deficit > most) {
        most = deficit;
        best = i;
      }
    }
    datasets[static_cast<std::size_t>(sample)] = static_cast<std::int16_t>(best);
    samples[static_cast<std::size_t>(sample)] = counts[best]++;
    if (!limits.empty() && counts[best] == limits[best]) std::erase(open, best);
  }
  return out;
}

// `limits` is part of the key: it distinguishes an exhaustive blend from one by weights.
BlendIndex cached_draw(std::span<const double> weights, std::int64_t size,
                       std::span<const std::int64_t> limits, const std::string& cache_folder) {
  std::array<std::uint64_t, 2> sizes{static_cast<std::uint64_t>(size), ArrayFile::kVersion};
  std::uint64_t key = hash_bytes(std::as_bytes(std::span(sizes)), 0);
  key = hash_bytes(std::as_bytes(limits), hash_bytes(std::as_bytes(weights), key));
  return BlendIndex(
      cached_arrays(cache_folder, "blend-index", key, [&] { return draw(weights, size, limits); }));
}

}  // namespace

Blend parse_blend(std::span<const std::string> words, std::string_view flag) {
  Blend blend;
  std::size_t weights = 0;
  for (std::size_t i = 0; i < words.size(); i += 2) weights += read_weight(words[i]) ? 1 : 0;
  if (words.size() % 2 == 1 || weights == 0) {
    for (const std::string& word : words) blend.prefixes.emplace_back(trim(word));
    return blend;
  }
  for (std::size_t i = 0; i < words.size(); i += 2) {
    std::optional<double> weight = read_weight(words[i]);
    BEV_CHECK(weight && std::isfinite(*weight) && *weight > 0, ErrorKind::kConfig, flag, ": '",
              words[i], "' stands where a weight above 0 should, before ", words[i + 1],
              "; give a weight for each prefix, or none");
    blend.weights.push_back(*weight);
    blend.prefixes.emplace_back(trim(words[i + 1]));
  }
  return blend;
}

std::vector<double> normalize(std::span<const double> weights) {
  double sum = pairwise_sum(weights);
  std::vector<double> out;
  for (double weight : weights) out.push_back(weight / sum);
  return out;
}

std::int64_t blend_share(std::int64_t samples, double weight) {
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(samples) * weight));
}

std::int64_t blend_share_with_surplus(std::int64_t samples, double weight) {
  constexpr double kSurplus = 1 + 0.005;
  return static_cast<std::int64_t>(
      std::ceil(static_cast<double>(blend_share(samples, weight)) * kSurplus));
}

BlendIndex blend_by_weights(std::span<const double> weights, std::int64_t size,
                            const std::string& cache_folder) {
  return cached_draw(weights, size, {}, cache_folder);
}

BlendIndex blend_exhaustively(std::span<const std::int64_t> sizes,
                              const std::string& cache_folder) {
  std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  std::vector<double> weights;
  for (std::int64_t size : sizes) {
    weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  }
  return cached_draw(weights, total, sizes, cache_folder);
}

}  // namespace bev
