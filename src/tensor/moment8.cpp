#include "tensor/moment8.h"

#include <algorithm>

namespace bev {

void pack_moments(MomentFormat format, const float* from, const std::uint32_t* noise,
                  std::int64_t count, std::uint8_t* codes, std::uint8_t* scales) {
  const auto noise_of = [&](std::int64_t i) { return noise == nullptr ? kNearestNoise : noise[i]; };
  for (std::int64_t begin = 0; begin < count; begin += kMomentBlock) {
    const std::int64_t end = std::min(begin + kMomentBlock, count);
    std::uint32_t largest = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      largest = std::max(largest, moment_digits(from[i], noise_of(i)));
    }
    const std::uint8_t scale = moment_scale(largest);
    for (std::int64_t i = begin; i < end; ++i) {
      codes[i] = pack_moment(format, from[i], noise_of(i), scale);
    }
    scales[begin / kMomentBlock] = scale;
  }
}

void unpack_moments(MomentFormat format, const std::uint8_t* codes, const std::uint8_t* scales,
                    std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = unpack_moment(format, codes[i], scales[i / kMomentBlock]);
  }
}

}  // namespace bev
