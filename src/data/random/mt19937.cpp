#include "data/random/mt19937.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace bev {

RandomState::RandomState(std::uint64_t seed) {
  BEV_CHECK(seed <= 0xFFFFFFFFu, ErrorKind::kConfig, "--seed: ", seed,
            " orders no data; use one below 4294967296");
  state_[0] = static_cast<std::uint32_t>(seed);
  for (std::uint32_t i = 1; i < kWords; ++i) {
    state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  }
}

void RandomState::refill() {
  constexpr std::size_t kShift = 397;
  auto twist = [&](std::size_t i, std::size_t next, std::size_t far) {
    std::uint32_t bits = (state_[i] & 0x80000000u) | (state_[next] & 0x7FFFFFFFu);
    state_[i] = state_[far] ^ (bits >> 1) ^ (0x9908B0DFu & (0u - (bits & 1u)));
  };
  for (std::size_t i = 0; i < kWords - kShift; ++i) twist(i, i + 1, i + kShift);
  for (std::size_t i = kWords - kShift; i < kWords - 1; ++i) twist(i, i + 1, i + kShift - kWords);
  twist(kWords - 1, 0, kShift - 1);
  for (std::size_t i = 0; i < kWords; ++i) {
    std::uint32_t y = state_[i];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9D2C5680u;
    y ^= (y << 15) & 0xEFC60000u;
    output_[i] = y ^ (y >> 18);
  }
  position_ = 0;
}

std::uint64_t RandomState::interval(std::uint64_t most) {
  if (most == 0) return 0;
  std::uint64_t mask = ~std::uint64_t{0} >> std::countl_zero(most);
  std::uint64_t value = 0;
  do {
    if (most <= 0xFFFFFFFFu) {
      value = next() & mask;
    } else {
      std::uint64_t high = next();
      value = (high << 32 | next()) & mask;
    }
  } while (value > most);
  return value;
}

double RandomState::uniform() {
  std::uint32_t high = next() >> 5, low = next() >> 6;
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

bool RandomState::bernoulli(double probability) {
  // Draws the less likely outcome; inversion may round to neither value, then it draws again.
  bool swapped = probability > 0.5;
  double rare = swapped ? 1.0 - probability : probability;
  double common = 1.0 - rare;
  double none = std::exp(std::log(common));
  while (true) {
    double value = uniform();
    if (value <= none) return swapped;
    if (value - none <= rare * none / common) return !swapped;
  }
}

// Branch-free rejection: a rejected word is overwritten by the next one, because whether it is
// rejected is unpredictable.
void RandomState::draw_partners(std::size_t last, std::span<std::size_t> partners) {
  std::size_t done = 0;
  for (; done < partners.size() && last - done > 0xFFFFFFFFu; ++done) {
    partners[done] = interval(last - done);
  }
  while (done < partners.size()) {
    std::size_t mask = ~std::size_t{0} >> std::countl_zero(last - done);
    // Number of draws that share this mask.
    std::size_t stop = std::min(partners.size(), last - mask / 2);
    while (done < stop) {
      std::size_t word = next() & mask;
      partners[done] = word;
      done += word <= last - done ? 1 : 0;
    }
  }
}

}  // namespace bev
