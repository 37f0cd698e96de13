#include "data/text_corpus.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "data/mock_dataset.h"
#include "data/shuffle.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using Tokens = std::vector<std::int32_t>;

std::string read_text(const TextCorpus& corpus, std::int64_t begin, std::int64_t count) {
  Tokens tokens(static_cast<std::size_t>(count), -1);
  corpus.read(begin, tokens);
  std::string text;
  for (std::int32_t token : tokens) text.push_back(static_cast<char>(token));
  return text;
}

std::string all_text(const TextCorpus& corpus) { return read_text(corpus, 0, corpus.num_tokens()); }

TextCorpus corpus_of(std::vector<std::string> paths) { return TextCorpus(paths); }

// A corpus whose token at i is i mod 256.
std::shared_ptr<const TextCorpus> counting_corpus(const TempFolder& folder, std::size_t bytes) {
  std::string text(bytes, '\0');
  std::iota(text.begin(), text.end(), '\0');
  return std::make_shared<TextCorpus>(corpus_of({folder.write("counting", text)}));
}

TEST(TextCorpus, TakesFilesAsGivenAndFoldersSorted) {
  TempFolder folder;
  std::string last = folder.write("z.txt", "LAST");
  folder.write("d/b/x", "2");
  folder.write("d/a", "1");
  folder.write("d/b.txt", "b.");
  folder.write("d/.hidden", "h");
  folder.write("d/empty", "");
  TextCorpus corpus = corpus_of({last, folder.path("d"), last});
  // By path: ".hidden" < "a" < "b.txt" < "b/x".
  EXPECT_EQ(all_text(corpus), "LASTh1b.2LAST");
  EXPECT_EQ(corpus.num_documents(), 6);
}

TEST(TextCorpus, KeepsEveryByteValue) {
  TempFolder folder;
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  TextCorpus corpus = corpus_of({folder.write("bytes", bytes)});
  Tokens tokens(256);
  corpus.read(0, tokens);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(tokens[static_cast<std::size_t>(i)], i);
}

TEST(TextCorpus, ReadsAcrossSmallAndMappedFiles) {
  TempFolder folder;
  std::string large(3'000'001, 'm');
  large.front() = '<';
  large.back() = '>';
  TextCorpus corpus =
      corpus_of({folder.write("1", "a"), folder.write("2", large), folder.write("3", "bc")});
  EXPECT_EQ(corpus.num_tokens(), 3'000'004);
  EXPECT_EQ(read_text(corpus, 0, 3), "a<m");
  EXPECT_EQ(read_text(corpus, 3'000'000, 4), "m>bc");
  EXPECT_EQ(read_text(corpus, 3'000'003, 1), "c");
  EXPECT_EQ(all_text(corpus), "a" + large + "bc");
  EXPECT_EQ(read_text(corpus, 3'000'004, 0), "");
}

TEST(TextCorpus, ReadsOnlyWhatExists) {
  TempFolder folder;
  TextCorpus corpus = corpus_of({folder.write("a", "abc")});
  for (auto [begin, count] : {std::pair{-1, 1}, {0, 4}, {3, 1}, {4, 0}}) {
    EXPECT_THROW(read_text(corpus, begin, count), Error) << begin;
  }
}

TEST(TextCorpus, EmptyTextIsAnError) {
  TempFolder folder;
  std::string empty = folder.write("empty", "");
  folder.write("d/e/empty", "");
  expect_error(ErrorKind::kInput, {"no text", empty}, [&] {
    corpus_of({empty, folder.path("d")});
  });
  expect_error(ErrorKind::kInput, {"no text"}, [&] { corpus_of({}); });
}

TEST(TextCorpus, MissingFilesAreErrorsWithTheirPath) {
  TempFolder folder;
  expect_error(ErrorKind::kInput, {"nowhere.txt", "No such file"},
               [&] { corpus_of({folder.path("nowhere.txt")}); });
}

TEST(TextCorpus, SurvivesLinkLoopsAndDanglingLinks) {
  TempFolder folder;
  folder.write("d/a", "text");
  ASSERT_EQ(symlink(folder.path("d").c_str(), folder.path("d/loop").c_str()), 0);
  ASSERT_EQ(symlink("nowhere", folder.path("d/dangling").c_str()), 0);
  ASSERT_EQ(symlink("a", folder.path("d/link").c_str()), 0);
  EXPECT_EQ(all_text(corpus_of({folder.path("d")})), "texttext");
}

TEST(SplitBounds, RoundsCumulativeSharesHalfToEven) {
  using Bounds = std::array<std::int64_t, 4>;
  EXPECT_EQ(split_bounds("969,30,1", 1000), (Bounds{0, 969, 999, 1000}));
  EXPECT_EQ(split_bounds("1", 10), (Bounds{0, 10, 10, 10}));
  EXPECT_EQ(split_bounds("1,1", 5), (Bounds{0, 2, 5, 5}));
  EXPECT_EQ(split_bounds("1,1", 7), (Bounds{0, 4, 7, 7}));
  EXPECT_EQ(split_bounds(" 0.5, 0.25 ,0.25", 8), (Bounds{0, 4, 6, 8}));
  EXPECT_EQ(split_bounds("0,0,3", 8), (Bounds{0, 0, 0, 8}));
  EXPECT_EQ(split_bounds("0.1,0.2,0.7", 1'000'000'000'000)[3], 1'000'000'000'000);
  EXPECT_EQ(split_bounds("98,1,1", 0), (Bounds{0, 0, 0, 0}));
}

TEST(SplitBounds, RejectsWhatIsNotWeights) {
  for (const char* bad : {"", ",", "1,,1", "1,1,1,1", "-1,2", "a", "1;1", "nan", "inf,1", "0,0,0",
                          "1e308,1e308", "1x", "0x10", "1,2,"}) {
    expect_error(ErrorKind::kConfig, {"split"}, [&] { split_bounds(bad, 100); });
  }
}

TEST(PermuteIndex, IsAPermutationForEveryCount) {
  for (std::int64_t count : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 257, 1000}) {
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < count; ++i) seen.insert(permute_index(i, count, 42));
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), count);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), count - 1);
  }
  std::int64_t huge = (std::int64_t{1} << 62) + 12345;
  std::int64_t place = permute_index(huge - 1, huge, 7);
  EXPECT_TRUE(place >= 0 && place < huge);
}

// Over many keys every item of five is equally often at every place: chi-square with 16 degrees of
// freedom.
TEST(PermuteIndex, IsUniformOverKeys) {
  int counts[5][5] = {};
  constexpr int kKeys = 10'000;
  for (int key = 0; key < kKeys; ++key) {
    for (int i = 0; i < 5; ++i) ++counts[i][permute_index(i, 5, static_cast<std::uint64_t>(key))];
  }
  double chi_square = 0;
  for (auto& row : counts) {
    for (int count : row)
      chi_square += (count - kKeys / 5.0) * (count - kKeys / 5.0) / (kKeys / 5.0);
  }
  EXPECT_LT(chi_square, 39.3);  // 0.1 %
}

TEST(TextDataset, CutsWindowsWithOneSharedToken) {
  TempFolder folder;
  TextDataset dataset(counting_corpus(folder, 22),
                      {.seq_length = 7, .split = "1", .seed = 3, .shuffle = false});
  ASSERT_EQ(dataset.num_samples(), 3);  // 3 x 7 + 1 tokens
  Tokens tokens(8);
  dataset.window(2, tokens);
  EXPECT_EQ(tokens, (Tokens{14, 15, 16, 17, 18, 19, 20, 21}));
  dataset.window(3, tokens);  // the next epoch
  EXPECT_EQ(tokens, (Tokens{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(TextDataset, SplitsAreDisjointAndComplete) {
  TempFolder folder;
  auto corpus = counting_corpus(folder, 200);
  std::vector<int> targets(200, 0);
  for (DataSplit part : {DataSplit::kTrain, DataSplit::kValid, DataSplit::kTest}) {
    TextDataset dataset(corpus, {.seq_length = 1, .split = "7,2,1", .part = part, .seed = 1});
    Tokens tokens(2);
    for (std::int64_t i = 0; i < dataset.num_samples(); ++i) {
      dataset.window(i, tokens);
      EXPECT_EQ(tokens[1], tokens[0] + 1);
      ++targets[static_cast<std::size_t>(tokens[1])];
    }
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    EXPECT_EQ(targets[i], i == 0 || i == 140 || i == 180 ? 0 : 1)
        << i;  // a split's first is no target
  }
}

TEST(TextDataset, EpochsVisitAllSamplesInOrdersOfTheirOwn) {
  TempFolder folder;
  auto corpus = counting_corpus(folder, 251);
  TextDatasetConfig config{.seq_length = 5, .split = "1", .seed = 11};
  TextDataset dataset(corpus, config);
  auto order = [](const TextDataset& source, std::int64_t epoch) {
    Tokens first, tokens(6);
    for (std::int64_t i = 0; i < source.num_samples(); ++i) {
      source.window(epoch * source.num_samples() + i, tokens);
      first.push_back(tokens[0]);
    }
    return first;
  };
  Tokens epoch0 = order(dataset, 0), epoch1 = order(dataset, 1);
  EXPECT_EQ(dataset.num_samples(), 50);
  EXPECT_NE(epoch0, epoch1);
  EXPECT_EQ(epoch0, order(TextDataset(corpus, config), 0));  // a pure function
  config.seed = 12;
  EXPECT_NE(epoch0, order(TextDataset(corpus, config), 0));
  std::sort(epoch0.begin(), epoch0.end());
  std::sort(epoch1.begin(), epoch1.end());
  EXPECT_EQ(epoch0, epoch1);
  EXPECT_EQ(std::set<std::int32_t>(epoch0.begin(), epoch0.end()).size(), 50u);
}

// The order is part of what a resumed run relies on: a change of it must be deliberate.
TEST(TextDataset, OrderIsPinned) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < 10; ++i) order.push_back(permute_index(i, 10, 1234));
  EXPECT_EQ(order, (std::vector<std::int64_t>{8, 6, 2, 1, 0, 3, 9, 5, 4, 7}));
}

TEST(TextDataset, TooShortASplitHasNoSamplesAndSaysWhy) {
  TempFolder folder;
  auto corpus = counting_corpus(folder, 100);
  TextDataset dataset(corpus, {.seq_length = 64, .split = "99,1", .part = DataSplit::kValid});
  EXPECT_EQ(dataset.num_samples(), 0);
  Tokens tokens(65);
  expect_error(ErrorKind::kInput, {"validation", "99,1", "1 of 100", "65"},
               [&] { dataset.window(0, tokens); });
  TextDataset exact(corpus, {.seq_length = 99, .split = "1"});
  EXPECT_EQ(exact.num_samples(), 1);
  TextDataset over(corpus, {.seq_length = 100, .split = "1"});
  EXPECT_EQ(over.num_samples(), 0);
  expect_error(ErrorKind::kConfig, {"sequence length 0"},
               [&] { TextDataset(corpus, {.seq_length = 0}); });
}

TEST(TextDataset, ChecksItsArguments) {
  TempFolder folder;
  TextDataset dataset(counting_corpus(folder, 100), {.seq_length = 9});
  Tokens tokens(9);
  expect_error(ErrorKind::kInternal, {"into 9"}, [&] { dataset.window(0, tokens); });
  tokens.resize(10);
  expect_error(ErrorKind::kInternal, {"sample -1"}, [&] { dataset.window(-1, tokens); });
}

TEST(MockDataset, IsALearnableChainWithinTheVocabulary) {
  for (std::int64_t vocab_size :
       {std::int64_t{1}, std::int64_t{2}, std::int64_t{97}, std::int64_t{1} << 31}) {
    MockDataset dataset({.vocab_size = vocab_size, .seq_length = 4000, .seed = 5});
    Tokens tokens(4001);
    dataset.window(3, tokens);
    int follows = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_TRUE(tokens[i] >= 0 && tokens[i] < vocab_size);
      if (i > 0) follows += tokens[i] == (5 * std::int64_t{tokens[i - 1]} + 3) % vocab_size;
    }
    EXPECT_GT(follows, 2850);
    if (vocab_size > 90) {
      EXPECT_LT(follows, 3150);
    }
  }
}

TEST(MockDataset, SamplesDifferAndRepeatByEpoch) {
  MockDataset dataset({.vocab_size = 1000, .seq_length = 30, .seed = 5, .num_samples = 4});
  MockDataset other({.vocab_size = 1000, .seq_length = 30, .seed = 6, .num_samples = 4});
  Tokens a(31), b(31);
  dataset.window(1, a);
  dataset.window(5, b);
  EXPECT_EQ(a, b);
  dataset.window(2, b);
  EXPECT_NE(a, b);
  other.window(1, b);
  EXPECT_NE(a, b);
  expect_error(ErrorKind::kConfig, {"vocabulary 0"},
               [] { MockDataset({.vocab_size = 0, .seq_length = 1}); });
}

}  // namespace
}  // namespace bev
