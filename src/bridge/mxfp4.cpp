#include "bridge/mxfp4.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "tensor/dtype.h"

namespace bev {

namespace {
// E2M1: sign, two exponent bits, one mantissa bit.
constexpr std::array<float, 16> kNumbers = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                            -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
constexpr int kScaleBias = 127;
}  // namespace

void expand_mxfp4(std::span<const std::byte> blocks, std::span<const std::byte> scales,
                  std::byte* out) {
  constexpr std::size_t kBytes = kMxfp4Block / 2;
  BEV_CHECK(blocks.size() == scales.size() * kBytes, ErrorKind::kInput, "mxfp4: ", blocks.size(),
            " bytes of blocks for ", scales.size(), " scales");
  for (std::size_t block = 0; block < scales.size(); ++block) {
    int exponent = std::to_integer<int>(scales[block]) - kScaleBias;
    std::array<Bf16, kMxfp4Block> numbers;
    for (std::size_t i = 0; i < kBytes; ++i) {
      auto pair = std::to_integer<unsigned>(blocks[block * kBytes + i]);
      numbers[2 * i] = Bf16(std::ldexp(kNumbers[pair & 15], exponent));
      numbers[2 * i + 1] = Bf16(std::ldexp(kNumbers[pair >> 4], exponent));
    }
    std::memcpy(out + block * sizeof numbers, numbers.data(), sizeof numbers);
  }
}

}  // namespace bev
