// GPT sample index: Megatron's values, a slow reference implementation, and the cache.
#include "data/gpt/gpt_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/file.h"
#include "data/gpt/gpt_epochs.h"
#include "tests/data/processes.h"
#include "tests/data/token_files.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

using Lengths = std::vector<std::int32_t>;
using Rows = std::vector<std::pair<std::int64_t, std::int64_t>>;
using testing::ElementsAre;

PackedArray<std::int32_t> packed(const Lengths& lengths) {
  return PackedArray<std::int32_t>(std::span<const std::int32_t>(lengths));
}

struct Order {
  std::vector<std::int64_t> documents, shuffle;
  Rows samples;
  bool operator==(const Order&) const = default;
};

Order order_of(const GptIndex& index) {
  Order out;
  for (std::int64_t i = 0; i < index.num_documents(); ++i) {
    out.documents.push_back(index.document(i));
  }
  for (std::int64_t i = 0; i <= index.num_samples(); ++i) {
    SampleStart start = index.sample_start(i);
    out.samples.emplace_back(start.position, start.offset);
  }
  for (std::int64_t i = 0; i < index.num_samples(); ++i) out.shuffle.push_back(index.shuffled(i));
  return out;
}

GptIndexSpec spec_of(const Lengths& lengths, std::int64_t samples, std::int64_t seq_length = 4) {
  GptIndexSpec spec;
  spec.end_sequence = static_cast<std::int64_t>(lengths.size());
  spec.num_samples = samples;
  spec.seq_length = seq_length;
  return spec;
}

Order build(const Lengths& lengths, const GptIndexSpec& spec) {
  return order_of(GptIndex(packed(lengths), spec));
}

TEST(GptIndex, IsMegatronsForOneEpoch) {
  Lengths lengths{5, 3, 7, 4, 6};
  Order order = build(lengths, spec_of(lengths, 6));
  EXPECT_THAT(order.documents, ElementsAre(4, 0, 1, 2, 3));
  EXPECT_EQ(order.samples, (Rows{{0, 0}, {0, 4}, {1, 2}, {2, 1}, {3, 2}, {3, 6}, {4, 3}}));
  EXPECT_THAT(order.shuffle, ElementsAre(5, 2, 3, 1, 0, 4));
}

TEST(GptIndex, IsMegatronsForEpochsShuffledTogether) {
  Lengths lengths{5, 3, 7, 4, 6};
  Order order = build(lengths, spec_of(lengths, 11));
  EXPECT_THAT(order.documents, ElementsAre(2, 2, 4, 1, 0, 3, 4, 0, 1, 3));
  EXPECT_EQ(order.samples, (Rows{{0, 0},
                                 {0, 4},
                                 {1, 1},
                                 {1, 5},
                                 {2, 2},
                                 {3, 0},
                                 {4, 1},
                                 {5, 0},
                                 {6, 0},
                                 {6, 4},
                                 {7, 2},
                                 {8, 1},
                                 {9, 2}}));
  EXPECT_THAT(order.shuffle, ElementsAre(3, 11, 2, 1, 7, 5, 4, 0, 8, 6, 10, 9));
}

TEST(GptIndex, IsMegatronsForALastEpochShuffledApart) {
  Lengths lengths{5, 3, 7, 4, 6, 9, 8, 3};
  Order order = build(lengths, spec_of(lengths, 13));
  EXPECT_THAT(order.documents, ElementsAre(2, 1, 6, 0, 4, 5, 3, 7, 5, 0, 3, 4, 2, 6, 1, 7));
  EXPECT_THAT(order.shuffle, ElementsAre(3, 9, 2, 1, 7, 5, 4, 0, 8, 6, 10,  //
                                         19, 12, 20, 15, 14, 18, 17, 21, 16, 11, 13));
  EXPECT_EQ(order.samples,
            (Rows{{0, 0},  {0, 4},  {1, 1},  {2, 2},  {2, 6},  {3, 2},  {4, 1}, {4, 5},
                  {5, 3},  {5, 7},  {6, 2},  {7, 2},  {8, 3},  {8, 7},  {9, 2}, {10, 1},
                  {11, 1}, {11, 5}, {12, 3}, {13, 0}, {13, 4}, {14, 0}, {15, 1}}));
}

// Reference: lists every token of the concatenated documents and counts off samples.
Order slow_order(const Lengths& lengths, const GptIndexSpec& spec) {
  std::int64_t tokens = 0, extra = spec.extra_token ? 1 : 0, epochs = 1;
  for (std::int64_t i = spec.first_sequence; i < spec.end_sequence; ++i) {
    tokens += lengths[static_cast<std::size_t>(i)];
  }
  std::int64_t wanted = spec.num_samples.value_or(0);
  while (spec.num_samples && epochs * tokens < wanted * spec.seq_length + extra) ++epochs;
  std::int64_t before = ((epochs - 1) * tokens - extra) / spec.seq_length;
  std::int64_t each = (tokens - extra) / spec.seq_length;
  bool apart = epochs > 1 && wanted - before < each * 4 / 5;
  std::mt19937 words(static_cast<std::uint32_t>(spec.seed));
  auto shuffle = [&](std::span<std::int64_t> values) {
    for (std::size_t last = values.size(); last-- > 1;) {
      std::size_t mask = 1;
      while (mask < last) mask = 2 * mask + 1;
      std::size_t partner = 0;
      do partner = words() & mask;
      while (partner > last);
      std::swap(values[last], values[partner]);
    }
  };
  Order out;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (std::int64_t i = spec.first_sequence; i < spec.end_sequence; ++i) {
      out.documents.push_back(i);
    }
  }
  std::size_t once = out.documents.size() / static_cast<std::size_t>(epochs);
  std::size_t together = apart ? out.documents.size() - once : out.documents.size();
  shuffle(std::span(out.documents).first(together));
  shuffle(std::span(out.documents).subspan(together));
  Rows places;  // of every token
  for (std::size_t d = 0; d < out.documents.size(); ++d) {
    for (std::int64_t t = 0; t < lengths[static_cast<std::size_t>(out.documents[d])]; ++t) {
      places.emplace_back(d, t);
    }
  }
  std::int64_t count = (epochs * tokens - extra) / spec.seq_length;
  for (std::int64_t sample = 0; sample <= count; ++sample) {
    // With an extra token, a sample starts at the last token that its predecessor reads; without
    // one, after it.
    auto at = static_cast<std::size_t>(sample * spec.seq_length);
    out.samples.push_back(at == 0 ? std::pair<std::int64_t, std::int64_t>(0, 0)
                          : extra ? places[at]
                                  : std::pair(places[at - 1].first, places[at - 1].second + 1));
  }
  out.shuffle.resize(static_cast<std::size_t>(count));
  std::iota(out.shuffle.begin(), out.shuffle.end(), 0);
  std::size_t first = static_cast<std::size_t>(apart ? before : count);
  shuffle(std::span(out.shuffle).first(first));
  shuffle(std::span(out.shuffle).subspan(first));
  return out;
}

TEST(GptIndex, EqualsASlowOneOnRandomData) {
  std::mt19937 random(11);
  auto below = [&](int bound) { return static_cast<std::int64_t>(random()) % bound; };
  for (int trial = 0; trial < 400; ++trial) {
    Lengths lengths;
    auto count = 1 + below(30);
    for (std::int64_t i = 0; i < count; ++i) {
      lengths.push_back(1 + static_cast<std::int32_t>(below(trial % 2 ? 6 : 60)));
    }
    GptIndexSpec spec = spec_of(lengths, below(60), 1 + below(20));
    spec.first_sequence = below(static_cast<int>(count));
    spec.seed = random();
    spec.extra_token = below(2) == 1;
    if (below(5) == 0) spec.num_samples.reset();
    EXPECT_EQ(build(lengths, spec), slow_order(lengths, spec)) << "trial " << trial;
  }
}

TEST(GptIndex, PassesOverSequencesWithoutTokens) {
  Lengths lengths{0, 5, 0, 0, 4, 0};
  GptIndexSpec spec = spec_of(lengths, 2);
  Order order = build(lengths, spec);
  ASSERT_EQ(order.shuffle.size(), 2u);
  for (auto [position, offset] : order.samples) {
    std::int64_t document = order.documents[static_cast<std::size_t>(position)];
    EXPECT_LE(offset, lengths[static_cast<std::size_t>(document)]);
  }
  spec.keep_partial = true;
  build(Lengths{0, 3, 0}, spec_of({0, 3, 0}, 1));
}

TEST(GptIndex, RefusesSamplesOfNothing) {
  Lengths lengths{0, 0};
  expect_error(ErrorKind::kInput, {"3 samples", "without tokens"},
               [&] { build(lengths, spec_of(lengths, 3)); });
  EXPECT_EQ(build(lengths, spec_of(lengths, 0)).shuffle.size(), 0u);
  EXPECT_EQ(build({}, spec_of({}, 0)).samples, (Rows{{0, 0}}));
  expect_error(ErrorKind::kConfig, {"--seq-length"}, [] { build({3}, spec_of({3}, 1, 0)); });
}

TEST(GptEpochs, CountPartialSamplesInSinglePrecision) {
  Lengths lengths(9, 2000000000);
  GptIndexSpec spec = spec_of(lengths, 1, 1);
  spec.keep_partial = true;
  // 17,999,999,999 is not a float; the nearest is 17,999,998,976.
  EXPECT_EQ(gpt_epochs(packed(lengths), spec).num_samples, 17999998976);
  spec.keep_partial = false;
  EXPECT_EQ(gpt_epochs(packed(lengths), spec).num_samples, 17999999999);
}

class GptIndexCache : public testing::Test {
 protected:
  GptIndex open() { return GptIndex(packed(lengths_), spec_, folder_.path("cache")); }
  std::string file() { return folder_.path("cache/") + gpt_index_file(packed(lengths_), spec_); }

  TempFolder folder_;
  Lengths lengths_{5, 3, 7, 4, 6, 9, 8, 3};
  GptIndexSpec spec_ = spec_of(lengths_, 13);
  Order expected_ = build(lengths_, spec_);
};

TEST_F(GptIndexCache, GivesTheSameOrderAgain) {
  EXPECT_EQ(order_of(open()), expected_);
  std::string bytes = read_file(file());
  EXPECT_EQ(order_of(open()), expected_);
  EXPECT_EQ(read_file(file()), bytes);
  EXPECT_EQ(list_directory(folder_.path("cache")).size(), 1u);
}

TEST_F(GptIndexCache, IsNamedByAllThatItDependsOn) {
  std::vector<std::string> names{gpt_index_file(packed(lengths_), spec_)};
  auto add = [&](auto change) {
    Lengths lengths = lengths_;
    GptIndexSpec spec = spec_;
    change(lengths, spec);
    names.push_back(gpt_index_file(packed(lengths), spec));
  };
  add([](Lengths& lengths, GptIndexSpec&) { ++lengths[3]; });
  add([](Lengths&, GptIndexSpec& spec) { ++spec.first_sequence; });
  add([](Lengths&, GptIndexSpec& spec) { --spec.end_sequence; });
  add([](Lengths&, GptIndexSpec& spec) { spec.num_samples = 14; });
  add([](Lengths&, GptIndexSpec& spec) { spec.num_samples.reset(); });
  add([](Lengths&, GptIndexSpec& spec) { ++spec.seq_length; });
  add([](Lengths&, GptIndexSpec& spec) { ++spec.seed; });
  add([](Lengths&, GptIndexSpec& spec) { spec.extra_token = false; });
  add([](Lengths&, GptIndexSpec& spec) { spec.keep_partial = true; });
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

TEST_F(GptIndexCache, IsMadeAgainWhenDamaged) {
  open();
  std::string good = read_file(file());
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x40);
    write_file(file(), bad);
    EXPECT_EQ(order_of(open()), expected_) << "byte " << at;
    EXPECT_EQ(read_file(file()), good) << "byte " << at;
  }
  for (std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{64}, good.size() - 1}) {
    write_file(file(), good.substr(0, size));
    EXPECT_EQ(order_of(open()), expected_) << "size " << size;
  }
}

TEST_F(GptIndexCache, MayBeMadeByManyProcessesAtOnce) {
  lengths_.assign(20000, 37);
  spec_ = spec_of(lengths_, 30000, 16);
  expected_ = build(lengths_, spec_);
  for (int round = 0; round < 3; ++round) {
    std::filesystem::remove_all(folder_.path("cache"));
    expect_in_processes(8, [&] {
      bool good = true;
      for (int again = 0; again < 3; ++again) good = good && order_of(open()) == expected_;
      return good;
    });
    EXPECT_EQ(list_directory(folder_.path("cache")).size(), 1u);
  }
}

}  // namespace
}  // namespace bev
