#include "base/philox.h"

#include <gtest/gtest.h>

namespace bev {
namespace {
// Random123's known answers for philox4x32-10.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, ~0ull),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822ull),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformLiesStrictlyBetweenZeroAndOne) {
  EXPECT_EQ(uniform_of(0), 0x1p-24f);
  EXPECT_EQ(uniform_of(~0u), 1 - 0x1p-24f);
  double sum = 0;
  for (std::uint32_t i = 0; i < 25000; ++i) {
    for (std::uint32_t word : philox({i, 0, 0, 0}, 7)) sum += static_cast<double>(uniform_of(word));
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.004);
}

TEST(Philox, MixedKeysAndNamesDiffer) {
  // splitmix64 of state 0.
  EXPECT_EQ(mix_bits(0), 0xe220a8397b1dcdafull);
  EXPECT_NE(mix_bits(1, 2), mix_bits(2, 1));
  EXPECT_EQ(hash_name(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(hash_name("a"), 0xaf63dc4c8601ec8cull);
  EXPECT_NE(hash_name("layers.1"), hash_name("layers.2"));
}
}  // namespace
}  // namespace bev
