// numpy's RandomState: MT19937 with Knuth's seeding, and its shuffle, draw for draw. It defines
// Megatron's data order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace bev {

class RandomState {
 public:
  // As in numpy, throws Error(kConfig) unless seed < 2^32.
  explicit RandomState(std::uint64_t seed);

  std::uint32_t next() {
    if (position_ == kWords) refill();
    return output_[position_++];
  }
  // Uniform in [0, most] by masking words and rejecting those above.
  std::uint64_t interval(std::uint64_t most);

  // Uniform in [0, 1): 53 bits from two words.
  double uniform();
  // binomial(1, probability), by inversion.
  bool bernoulli(double probability);

  // Fisher-Yates from the end. Swap positions do not depend on the data, so they are drawn ahead
  // and their memory is prefetched.
  template <class T>
  void shuffle(std::span<T> data) {
    std::array<std::size_t, 128> partners;
    for (std::size_t last = data.empty() ? 0 : data.size() - 1; last > 0;) {
      std::size_t count = last < partners.size() ? last : partners.size();
      draw_partners(last, std::span(partners).first(count));
      for (std::size_t i = 0; i < count; ++i) __builtin_prefetch(&data[partners[i]], 1);
      for (std::size_t i = 0; i < count; ++i) std::swap(data[last - i], data[partners[i]]);
      last -= count;
    }
  }

 private:
  static constexpr std::size_t kWords = 624;
  void refill();
  // Draws interval(last), interval(last - 1), ...
  void draw_partners(std::size_t last, std::span<std::size_t> partners);

  std::array<std::uint32_t, kWords> state_, output_;
  std::size_t position_ = kWords;
};

}  // namespace bev
