// Finds values far above those before, by Megatron's rule for losses and gradients.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace bev {

class SpikeWatch {
 public:
  static constexpr std::int64_t kSamples = 100;  // finite values that set the largest one
  static constexpr double kThreshold = 10;

  // Whether |value| is at least kThreshold times the largest of the first kSamples finite values.
  bool add(double value) {
    if (!std::isfinite(value)) return false;
    if (seen_ < kSamples) {
      ++seen_;
      largest_ = std::max(largest_, std::abs(value));
      return false;
    }
    return std::abs(value) >= kThreshold * largest_;
  }
  double largest() const { return largest_; }

 private:
  std::int64_t seen_ = 0;
  double largest_ = 0;
};

}  // namespace bev
