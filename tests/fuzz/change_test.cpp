// Readers of files from outside get files that are right, and hundreds of random changes of them.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "base/file.h"
#include "tests/fuzz/targets.h"

namespace bev::test {
namespace {

class ChangedFiles : public testing::TestWithParam<FuzzTarget> {};

// Deterministic: bytes changed, cut, repeated, swapped between seeds, and numbers made extreme.
std::string change(std::string bytes, std::mt19937_64& random) {
  auto below = [&](std::size_t n) {
    return static_cast<std::size_t>(random() % std::max<std::size_t>(n, 1));
  };
  for (std::size_t times = 1 + below(4); times > 0; --times) {
    std::size_t at = below(bytes.size()), count = std::min(below(24), bytes.size() - at);
    switch (below(7)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.erase(at, count);
        break;
      case 2:
        bytes.insert(at, bytes.substr(at, count));
        break;
      case 3:
        bytes.resize(at);
        break;
      case 4:
        bytes.insert(below(bytes.size()), std::string(below(2000), "[{(\"-9,:"[below(8)]));
        break;
      case 5:
        for (std::size_t i = at; i < std::min(at + 8, bytes.size()); ++i) bytes[i] = '\xff';
        break;
      default:
        bytes.insert(at, "99999999999999999999");
    }
  }
  return bytes;
}

TEST_P(ChangedFiles, AreRefusedOrTaken) {
  // BEV_FUZZ_ROUNDS: for a longer search by hand.
  const char* rounds = std::getenv("BEV_FUZZ_ROUNDS");
  const std::size_t changes = 1000 * (rounds != nullptr ? std::strtoul(rounds, nullptr, 10) : 1);
  std::mt19937_64 random(7);
  for (const std::string& seed : GetParam().seeds) {
    ASSERT_TRUE(GetParam().run(seed)) << seed;
    for (std::size_t i = 0; i < changes; i += GetParam().seeds.size()) {
      std::string bytes = change(seed, random);
      ASSERT_NO_THROW(GetParam().run(bytes)) << testing::PrintToString(bytes.substr(0, 400));
    }
  }
}

// What a search found once (tools/fuzz.sh), and what was written by hand.
TEST_P(ChangedFiles, AreRefusedWhereTheyOnceDidHarm) {
  std::filesystem::path folder =
      std::filesystem::path(BEV_SOURCE_DIR "/tests/fuzz/cases") / GetParam().name;
  if (!std::filesystem::exists(folder)) return;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path());
    alarm(60);  // ends a test that would never end
    ASSERT_NO_THROW(GetParam().run(read_file(entry.path())));
    alarm(0);
  }
  constexpr std::int64_t kMostKilobytes = 1 << 20;
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  EXPECT_LT(used.ru_maxrss, kMostKilobytes);
}

INSTANTIATE_TEST_SUITE_P(Readers, ChangedFiles, testing::ValuesIn(fuzz_targets()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace bev::test
