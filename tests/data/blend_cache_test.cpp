// Cached blend index: equal to a fresh one, whatever happens to its file.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "data/gpt/blend.h"
#include "tests/data/processes.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using Drawn = std::vector<std::pair<std::int16_t, std::int64_t>>;

Drawn drawn(const BlendIndex& blend) {
  Drawn out;
  for (std::size_t i = 0; i < blend.datasets().size(); ++i) {
    out.emplace_back(blend.datasets()[i], blend.samples()[i]);
  }
  return out;
}

const std::vector<double> kWeights{.3, .5, .2};

class BlendCache : public testing::Test {
 protected:
  std::string cache() const { return folder_.path("cache"); }
  std::string only_file() const { return join_path(cache(), list_directory(cache()).at(0)); }

  TempFolder folder_;
};

TEST_F(BlendCache, GivesTheSameOrderAgainAndTellsBlendsApart) {
  std::vector<std::int64_t> sizes{3, 5, 2};
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(drawn(blend_by_weights(kWeights, 10, cache())),
              drawn(blend_by_weights(kWeights, 10)));
    EXPECT_EQ(drawn(blend_by_weights(kWeights, 11, cache())),
              drawn(blend_by_weights(kWeights, 11)));
    // The same weights and size as the first.
    EXPECT_EQ(drawn(blend_exhaustively(sizes, cache())), drawn(blend_exhaustively(sizes)));
    std::vector<double> others{.5, .3, .2};
    EXPECT_EQ(drawn(blend_by_weights(others, 10, cache())), drawn(blend_by_weights(others, 10)));
    EXPECT_EQ(drawn(blend_by_weights(kWeights, 0, cache())).size(), 0u);
    EXPECT_EQ(list_directory(cache()).size(), 5u);
  }
}

TEST_F(BlendCache, IsMadeAgainWhenDamaged) {
  Drawn expected = drawn(blend_by_weights(kWeights, 7, cache()));
  std::string good = read_file(only_file());
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (at % 2 == 0 ? 0x80 : 0x01));
    write_file(only_file(), bad);
    ASSERT_EQ(drawn(blend_by_weights(kWeights, 7, cache())), expected) << "byte " << at;
    ASSERT_EQ(read_file(only_file()), good) << "byte " << at;
  }
  for (std::size_t size : {std::size_t{0}, std::size_t{31}, good.size() - 8}) {
    write_file(only_file(), good.substr(0, size));
    EXPECT_EQ(drawn(blend_by_weights(kWeights, 7, cache())), expected) << "size " << size;
  }
  write_file(only_file(), good + std::string(8, '\0'));
  EXPECT_EQ(drawn(blend_by_weights(kWeights, 7, cache())), expected);
}

TEST_F(BlendCache, MayBeMadeByEightProcessesAtOnce) {
  Drawn expected = drawn(blend_by_weights(kWeights, 50000));
  expect_in_processes(
      8, [&] { return drawn(blend_by_weights(kWeights, 50000, cache())) == expected; });
  EXPECT_EQ(list_directory(cache()).size(), 1u) << "no temporary file stays behind";
}

}  // namespace
}  // namespace bev
