// Sentence index: values from megatron-core's build_mapping, and the cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "base/file.h"
#include "data/masked/sentence_index.h"
#include "tests/data/processes.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using Rows = std::vector<std::array<std::int64_t, 3>>;
using testing::ElementsAre;

// Documents with five sentences, none, one, three, two with one too long, and three that just fit.
struct Sentences {
  std::vector<std::int32_t> lengths{3, 4, 0, 7, 2, 9, 5, 5, 5, 513, 1, 512, 2, 2};
  std::vector<std::int64_t> documents{0, 5, 5, 6, 9, 11, 14};

  SentenceLayout layout() const {
    return {PackedArray<std::int32_t>(std::span(lengths)),
            PackedArray<std::int64_t>(std::span(documents))};
  }
};

SentenceIndexSpec spec_of(std::optional<std::int64_t> samples, std::int64_t least_sentences) {
  SentenceIndexSpec spec;
  spec.end_document = 6;
  spec.num_samples = samples;
  spec.target_length = 9;
  spec.least_sentences = least_sentences;
  spec.short_sequence_probability = 0.3;
  return spec;
}

Rows rows_of(const SentenceIndex& index) {
  Rows rows;
  for (std::int64_t i = 0; i < index.num_samples(); ++i) {
    SentenceSample sample = index.sample(i);
    rows.push_back({sample.first, sample.first + sample.sentences, sample.target_length});
  }
  return rows;
}

Rows build(const Sentences& sentences, const SentenceIndexSpec& spec) {
  return rows_of(SentenceIndex(sentences.layout(), spec));
}

Rows ten_pairs() {
  return {{11, 14, 6}, {6, 9, 8}, {0, 5, 9},   {2, 5, 3}, {11, 14, 9},
          {6, 9, 3},   {6, 9, 8}, {11, 14, 9}, {0, 5, 9}, {0, 2, 2}};
}

TEST(SentenceIndex, IsMegatronsForPairsOverSeveralEpochs) {
  EXPECT_EQ(build(Sentences(), spec_of(10, 2)), ten_pairs());
  // Epochs are complete.
  EXPECT_EQ(build(Sentences(), spec_of(8, 2)), ten_pairs());
}

TEST(SentenceIndex, IsMegatronsForOneEpochOfSingleSentences) {
  Sentences sentences;
  sentences.lengths[5] = 900;  // too long only in a document with several sentences
  SentenceIndexSpec spec = spec_of(std::nullopt, 1);
  spec.short_sequence_probability = 0;
  spec.seed = 5;
  EXPECT_EQ(build(sentences, spec),
            (Rows{{5, 6, 9}, {6, 9, 9}, {12, 14, 9}, {11, 12, 9}, {0, 5, 9}}));
}

TEST(SentenceIndex, TakesOnlyDocumentsOfTheSplit) {
  SentenceIndexSpec spec = spec_of(std::nullopt, 2);
  spec.first_document = 3;
  for (const auto& row : build(Sentences(), spec)) EXPECT_GE(row[0], 6);
  spec.end_document = 3;
  EXPECT_TRUE(build(Sentences(), spec).empty());
}

TEST(SentenceIndex, EndsWhenNoDocumentCanBeUsed) {
  SentenceIndexSpec spec = spec_of(1000, 4);
  spec.first_document = 1;
  EXPECT_TRUE(build(Sentences(), spec).empty());
  EXPECT_TRUE(build(Sentences(), spec_of(0, 2)).empty());
}

TEST(SentenceIndex, CutsEverySampleOfADocumentOnce) {
  Sentences sentences;
  sentences.lengths.assign(200, 5);
  sentences.documents = {0, 1, 3, 60, 199, 200};
  SentenceIndexSpec spec = spec_of(std::nullopt, 2);
  spec.end_document = 5;
  spec.short_sequence_probability = 1;
  std::vector<int> uses(200);
  for (const auto& [first, end, target] : build(sentences, spec)) {
    EXPECT_GE(end - first, 2);
    EXPECT_GE(target, 2);
    EXPECT_LE(target, 9);
    for (std::int64_t i = first; i < end; ++i) ++uses[static_cast<std::size_t>(i)];
  }
  std::vector<int> expected(200, 1);
  expected.front() = expected.back() = 0;
  EXPECT_EQ(uses, expected);
}

TEST(SentenceIndex, RefusesWhatMegatronCannotCount) {
  SentenceIndexSpec spec = spec_of(4, 2);
  spec.seed = std::uint64_t{1} << 31;
  expect_error(ErrorKind::kConfig, {"--seed: 2147483648", "2147483647"},
               [&] { build(Sentences(), spec); });
  spec.seed = 1;
  spec.target_length = 1;
  expect_error(ErrorKind::kConfig, {"--seq-length: leaves 1"}, [&] { build(Sentences(), spec); });
}

class SentenceIndexCache : public testing::Test {
 protected:
  Rows open() const {
    return rows_of(SentenceIndex(sentences_.layout(), spec_, folder_.path("cache")));
  }
  std::string file() const {
    return folder_.path("cache/" + sentence_index_file(sentences_.layout(), spec_));
  }

  TempFolder folder_;
  Sentences sentences_;
  SentenceIndexSpec spec_ = spec_of(10, 2);
};

TEST_F(SentenceIndexCache, GivesTheSameAgain) {
  EXPECT_EQ(open(), ten_pairs());
  EXPECT_EQ(open(), ten_pairs());
  EXPECT_THAT(list_directory(folder_.path("cache")),
              ElementsAre(sentence_index_file(sentences_.layout(), spec_)));
}

TEST_F(SentenceIndexCache, IsNamedByAllItDependsOn) {
  std::string name = sentence_index_file(sentences_.layout(), spec_);
  auto expect_other = [&](const char* what, auto change) {
    Sentences sentences;
    SentenceIndexSpec spec = spec_;
    change(sentences, spec);
    EXPECT_NE(sentence_index_file(sentences.layout(), spec), name) << what;
  };
  using S = Sentences;
  using I = SentenceIndexSpec;
  expect_other("seed", [](S&, I& spec) { ++spec.seed; });
  expect_other("samples", [](S&, I& spec) { ++*spec.num_samples; });
  expect_other("epoch", [](S&, I& spec) { spec.num_samples.reset(); });
  expect_other("target", [](S&, I& spec) { ++spec.target_length; });
  expect_other("least", [](S&, I& spec) { --spec.least_sentences; });
  expect_other("probability", [](S&, I& spec) { spec.short_sequence_probability = 0.31; });
  expect_other("first", [](S&, I& spec) { ++spec.first_document; });
  expect_other("end", [](S&, I& spec) { --spec.end_document; });
  expect_other("length", [](S& sentences, I&) { ++sentences.lengths[4]; });
  expect_other("bound", [](S& sentences, I&) { --sentences.documents[1]; });
}

TEST_F(SentenceIndexCache, IsMadeAgainWhenDamagedAnywhere) {
  open();
  const std::string whole = read_file(file());
  for (std::size_t at = 0; at < whole.size(); at += at < 40 ? 1 : 9) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    write_file(file(), damaged);
    ASSERT_EQ(open(), ten_pairs()) << "byte " << at;
    ASSERT_EQ(read_file(file()), whole) << "byte " << at;
  }
  for (std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{40}, whole.size() - 16}) {
    write_file(file(), whole.substr(0, size));
    EXPECT_EQ(open(), ten_pairs()) << size;
  }
  write_file(file(), whole + whole.substr(40, 16));
  EXPECT_EQ(open(), ten_pairs());
}

TEST_F(SentenceIndexCache, MayBeMadeByManyProcessesAtOnce) {
  sentences_.lengths.assign(30000, 5);
  sentences_.documents.clear();
  for (std::int64_t at = 0; at <= 30000; at += 10) sentences_.documents.push_back(at);
  spec_.end_document = 3000;
  spec_.num_samples = 40000;
  const Rows expected = build(sentences_, spec_);
  for (int round = 0; round < 3; ++round) {
    std::filesystem::remove_all(folder_.path("cache"));
    expect_in_processes(8, [&] { return open() == expected && open() == expected; });
    EXPECT_EQ(list_directory(folder_.path("cache")).size(), 1u);
  }
}

}  // namespace
}  // namespace bev
