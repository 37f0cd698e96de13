#include "data/gpt/split.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace bev {

const char* name_of(DataSplit split) {
  switch (split) {
    case DataSplit::kTrain:
      return "train";
    case DataSplit::kValid:
      return "validation";
    case DataSplit::kTest:
      return "test";
  }
  return "unknown";
}

std::array<std::int64_t, 4> split_bounds(std::string_view weights, std::int64_t total) {
  std::vector<std::string> parts = bev::split(weights, ',');
  std::array<double, 3> shares{};
  double sum = 0;
  bool good = !parts.empty() && parts.size() <= shares.size();
  for (std::size_t i = 0; good && i < parts.size(); ++i) {
    std::string_view text = trim(parts[i]);
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), shares[i]);
    good = error == std::errc() && end == text.data() + text.size() && shares[i] >= 0 &&
           std::isfinite(shares[i]);
    sum += shares[i];
  }
  BEV_CHECK(good && sum > 0 && std::isfinite(sum), ErrorKind::kConfig, "split: '", weights,
            "' is not one to three weights, not all 0, like 969,30,1");
  std::array<std::int64_t, 4> bounds{};
  double cumulative = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    cumulative += shares[i] / sum;  // same summation order as Megatron, for equal rounding
    bounds[i + 1] = std::min(total, std::lrint(cumulative * static_cast<double>(total)));
  }
  return bounds;
}

}  // namespace bev
