// BERT and T5 samples: invariants and error messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>

#include "data/masked/masked_blend.h"
#include "tests/data/token_files.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

using test::Row;
using testing::ElementsAre;
using testing::IsEmpty;

const std::vector<std::string> kTokens{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b",
                                       "c",     "##d",   "e",     "##f",   "##g",    "h", "i",
                                       "j",     "k",     "l",     "m",     "n",      "o"};
enum Id : std::int32_t { kPad = 0, kCls = 2, kSep = 3, kMask = 4, kFirstWord = 5, kWords = 20 };

// A vocabulary that cannot encode text; "" is an unused id.
class ListTokenizer : public Tokenizer {
 public:
  explicit ListTokenizer(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}

  std::vector<std::int32_t> encode(std::string_view) const override { return {}; }
  std::string decode(std::span<const std::int32_t>) const override { return {}; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(tokens_.size()); }
  std::optional<std::int32_t> token_id(std::string_view token) const override {
    auto at = std::ranges::find(tokens_, token);
    if (at == tokens_.end()) return std::nullopt;
    return static_cast<std::int32_t>(at - tokens_.begin());
  }
  std::optional<std::string> token_text(std::int32_t id) const override {
    const std::string& text = tokens_[static_cast<std::size_t>(id)];
    return text.empty() ? std::nullopt : std::optional(text);
  }

 private:
  std::vector<std::string> tokens_;
};

std::shared_ptr<const MaskedVocabulary> listed(const std::vector<std::string>& tokens,
                                               std::int64_t extra_ids = 0) {
  return std::make_shared<MaskedVocabulary>(
      read_masked_vocabulary(ListTokenizer(tokens), "the list", extra_ids));
}

class MaskedData : public testing::Test {
 protected:
  // Documents of `sentences` sentences of `tokens` consecutive tokens.
  std::string counting(int documents, int sentences, int tokens) {
    std::vector<std::vector<Row>> out;
    std::int32_t next = 0;
    for (int d = 0; d < documents; ++d) {
      out.emplace_back();
      for (int s = 0; s < sentences; ++s) {
        Row row;
        for (int t = 0; t < tokens; ++t) row.push_back(kFirstWord + next++ % (kWords - kFirstWord));
        out.back().push_back(row);
      }
    }
    return test::pair_of(out).write(folder_, "data");
  }

  template <class Member>
  MaskedSplits<Member> open(const std::string& prefix, const MaskedDataConfig<Member>& config,
                            std::int64_t samples = 50) {
    GptSources sources;
    sources.shared = Blend{{prefix}, {}};
    sources.split = "1";
    return open_masked_data(sources, {samples, std::nullopt, std::nullopt}, vocabulary_, config);
  }
  std::shared_ptr<const MaskedBlend<BertDataset>> bert(const std::string& prefix,
                                                       const BertConfig& samples) {
    MaskedDataConfig<BertDataset> config;
    config.samples = samples;
    return open(prefix, config)[0];
  }
  std::shared_ptr<const MaskedBlend<T5Dataset>> t5(const std::string& prefix,
                                                   const T5Config& samples) {
    MaskedDataConfig<T5Dataset> config;
    config.samples = samples;
    return open(prefix, config)[0];
  }

  TempFolder folder_;
  std::shared_ptr<const MaskedVocabulary> vocabulary_ = listed(kTokens);
};

TEST_F(MaskedData, BertSamplesHaveTheirShape) {
  BertConfig config{.seq_length = 32, .masking = {.probability = 0.3}};
  auto data = bert(counting(9, 5, 6), config);
  int swapped = 0, padded = 0;
  std::map<bool, int> replaced;
  for (std::int64_t i = 0; i < data->num_samples(); ++i) {
    BertSample sample = data->sample(i);
    swapped += sample.is_random ? 1 : 0;
    std::size_t length = 0, separators = 0;
    while (length < 32 && sample.padding_mask[length] == 1) ++length;
    padded += length < 32 ? 1 : 0;
    EXPECT_EQ(sample.tokens[0], kCls);
    EXPECT_EQ(sample.tokens[length - 1], kSep);
    for (std::size_t t = 0; t < 32; ++t) {
      EXPECT_EQ(sample.loss_mask[t], sample.labels[t] >= 0 ? 1 : 0);
      if (t >= length) {
        EXPECT_THAT((std::array{sample.tokens[t], sample.types[t], sample.loss_mask[t]}),
                    ElementsAre(0, 0, 0));
        continue;
      }
      // Separators are never masked; they delimit the token types.
      bool separator = sample.tokens[t] == kSep && sample.loss_mask[t] == 0;
      EXPECT_EQ(sample.types[t], separators > 0 ? 1 : 0);
      separators += separator ? 1 : 0;
      if (sample.loss_mask[t] == 1) ++replaced[sample.tokens[t] == kMask];
    }
    EXPECT_EQ(separators, 2u);
  }
  EXPECT_GT(swapped, 10);
  EXPECT_LT(swapped, data->num_samples() - 10);
  EXPECT_GT(padded, 0);
  EXPECT_GT(replaced[true], 3 * replaced[false]);
  EXPECT_GT(replaced[false], 0);
}

// The spans that were cut out can be put back.
TEST_F(MaskedData, T5SamplesPutTogetherGiveTheText) {
  T5Config config{.seq_length = 40,
                  .decoder_seq_length = 44,
                  .masking = {.probability = 0.4, .max_ngram = 5, .geometric = true}};
  vocabulary_ = listed(kTokens, 20);
  auto data = t5(counting(6, 4, 7), config);
  for (std::int64_t i = 0; i < data->num_samples(); ++i) {
    T5Sample sample = data->sample(i);
    std::map<std::int32_t, Row> runs;
    std::int32_t sentinel = -1;
    auto length = static_cast<std::size_t>(sample.decoder_length);
    EXPECT_EQ(sample.decoder_tokens[0], kCls);
    EXPECT_EQ(sample.labels[length - 1], kSep);
    for (std::size_t t = 1; t < length; ++t) {
      std::int32_t token = sample.decoder_tokens[t];
      EXPECT_EQ(sample.labels[t - 1], token);
      if (token >= kWords) {
        sentinel = token;
        EXPECT_EQ(token, kWords + static_cast<std::int32_t>(runs.size()));
        runs[sentinel] = {};
      } else {
        runs[sentinel].push_back(token);
      }
    }
    Row text;
    for (std::size_t t = 0; t < static_cast<std::size_t>(sample.encoder_length); ++t) {
      std::int32_t token = sample.encoder_tokens[t];
      const Row& run = token >= kWords ? runs.at(token) : Row{token};
      text.insert(text.end(), run.begin(), run.end());
    }
    ASSERT_FALSE(text.empty());
    ASSERT_LE(text.size(), 38u);
    for (std::size_t t = 1; t < text.size(); ++t) {
      std::int32_t next = (text[t - 1] - kFirstWord + 1) % (kWords - kFirstWord) + kFirstWord;
      EXPECT_EQ(text[t], next) << "sample " << i << ", token " << t;
    }
    EXPECT_EQ(std::accumulate(sample.loss_mask.begin(), sample.loss_mask.end(), 0),
              sample.decoder_length);
    EXPECT_EQ(std::accumulate(sample.encoder_mask.begin(), sample.encoder_mask.end(), 0),
              sample.encoder_length);
  }
}

TEST_F(MaskedData, WholeWordsAreMaskedWhole) {
  TokenMasker masker(vocabulary_, {.probability = 0.5, .max_ngram = 2}, MaskRule::kMask);
  Row tokens{kCls, 5, 6, 6, 7, 8, kSep, 10, 11, 9, 10, 13, kSep};
  // A continuation after the separator belongs to the word before it.
  std::vector<std::set<std::size_t>> words{{1, 2, 3}, {4, 5, 7, 8}, {9, 10}, {11}};
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    RandomState random(seed);
    MaskedTokens out = masker.mask(tokens, 10, random);
    std::size_t masked = 0;
    for (const std::set<std::size_t>& word : words) {
      std::size_t count = 0;
      for (std::size_t place : word) count += out.labels[place] != kNoLabel ? 1 : 0;
      EXPECT_TRUE(count == 0 || count == word.size());
      masked += count;
    }
    EXPECT_LE(masked, 5u);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      bool label = out.labels[t] != kNoLabel;
      EXPECT_EQ(out.tokens[t], label ? kMask : tokens[t]);
      EXPECT_EQ(out.labels[t], label ? tokens[t] : kNoLabel);
    }
  }
}

TEST_F(MaskedData, PermutationKeepsTheTokensAndTheirLabels) {
  MaskingConfig config{.probability = 0.3, .permutation = true};
  TokenMasker masker(vocabulary_, config, MaskRule::kMask);
  Row tokens;
  for (std::int32_t i = 0; i < 15; ++i) tokens.push_back(kFirstWord + i);
  int moved = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    RandomState random(seed), again(seed);
    MaskedTokens out = masker.mask(tokens, 15, random);
    EXPECT_EQ(masker.mask(tokens, 15, again).tokens, out.tokens);
    Row kept, expected;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      if (out.tokens[t] == kMask) continue;
      kept.push_back(out.tokens[t]);
      expected.push_back(tokens[t]);
      if (out.tokens[t] != tokens[t]) {
        ++moved;
        EXPECT_EQ(out.labels[t], tokens[t]);
      }
    }
    EXPECT_THAT(kept, testing::UnorderedElementsAreArray(expected));
  }
  EXPECT_GT(moved, 50);
}

TEST_F(MaskedData, NothingIsMaskedWhereTheShareIsBelowOne) {
  TokenMasker masker(vocabulary_, {.probability = 0.15}, MaskRule::kBert);
  RandomState random(1);
  EXPECT_THAT(masker.mask(Row{5, 6, 7}, 3, random).spans, IsEmpty());
  EXPECT_THAT(masker.mask(Row{}, 30, random).tokens, IsEmpty());
  EXPECT_THAT(masker.mask(Row{kCls, kSep}, 30, random).spans, IsEmpty());
}

TEST_F(MaskedData, VocabulariesAreReadByName) {
  EXPECT_EQ(vocabulary_->cls, kCls);
  EXPECT_EQ(vocabulary_->bos, kCls);  // there is no other
  EXPECT_EQ(vocabulary_->eos, kSep);
  EXPECT_EQ(vocabulary_->pad, kPad);
  EXPECT_EQ(vocabulary_->tokens.size(), 20u);
  EXPECT_THAT(vocabulary_->sentinels, IsEmpty());
  EXPECT_EQ(vocabulary_->piece(6), PieceKind::kContinuation);
  EXPECT_EQ(vocabulary_->piece(7), PieceKind::kWordStart);
  EXPECT_EQ(vocabulary_->piece(20), PieceKind::kAbsent);
  EXPECT_EQ(vocabulary_->piece(-1), PieceKind::kAbsent);
  // Missing sentinels are appended after the last token.
  auto mixed = listed({"<extra_id_1>", "[UNK]", "[EOS]", "", "[BOS]", "<extra_id_0>", "[PAD]"}, 4);
  EXPECT_THAT(mixed->sentinels, ElementsAre(5, 0, 7, 8));
  EXPECT_THAT(mixed->tokens, ElementsAre(0, 1, 2, 4, 5, 6, 7, 8));
  EXPECT_EQ(mixed->piece(3), PieceKind::kAbsent);
  EXPECT_EQ(mixed->piece(8), PieceKind::kWordStart);
  EXPECT_EQ(mixed->bos, 4);
  EXPECT_EQ(mixed->eos, 2);
  EXPECT_EQ(mixed->pad, 6);
  EXPECT_EQ(mixed->cls, -1);
  // Without a number, consecutive existing sentinels.
  EXPECT_THAT(listed({"<extra_id_1>", "<extra_id_0>", "<extra_id_3>"})->sentinels,
              ElementsAre(1, 0));
}

TEST_F(MaskedData, NamesTokensThatAreMissing) {
  std::string prefix = counting(3, 3, 3);
  vocabulary_ = listed({"[UNK]", "[CLS]", "a"});
  expect_error(ErrorKind::kInput, {"the list: has no token [SEP], [MASK]; bert samples need"},
               [&] { bert(prefix, {.seq_length = 16}); });
  vocabulary_ = listed({"[UNK]", "a", "<extra_id_0>"});
  expect_error(ErrorKind::kInput, {"[BOS] or [CLS]", "[EOS], </s> or [SEP]", "t5 samples need"},
               [&] { t5(prefix, {.seq_length = 16, .decoder_seq_length = 16}); });
  vocabulary_ = listed(kTokens);
  expect_error(ErrorKind::kInput, {"<extra_id_0>", "--vocab-extra-ids"},
               [&] { t5(prefix, {.seq_length = 16, .decoder_seq_length = 16}); });
}

TEST_F(MaskedData, SaysWhatIsWrongWithTheData) {
  std::string alone = counting(4, 1, 5);
  expect_error(ErrorKind::kInput,
               {"data: the train split (1) has 4 documents", "at least 2 sentences"},
               [&] { bert(alone, {.seq_length = 16}); });
  EXPECT_GT(bert(alone, {.seq_length = 16, .classification_head = false})->num_samples(), 0);
  expect_error(ErrorKind::kConfig, {"--seq-length: leaves 1 tokens"},
               [&] { bert(alone, {.seq_length = 4}); });
  std::string foreign = test::pair_of({{{5, 6}, {7, 20, 5}}}).write(folder_, "foreign");
  expect_error(ErrorKind::kInput, {"foreign: token 1 of sentence 1 is 20", "the list"}, [&] {
    auto data = bert(foreign, {.seq_length = 16});
    data->sample(0);
  });
  vocabulary_ = listed(kTokens, 1);
  T5Config config{.seq_length = 40, .decoder_seq_length = 90, .masking = {.probability = 0.9}};
  auto read_all = [](const auto& data) {
    for (std::int64_t i = 0; i < data->num_samples(); ++i) data->sample(i);
  };
  expect_error(ErrorKind::kInput, {"but there are 1 sentinels", "--vocab-extra-ids"},
               [&] { read_all(t5(counting(4, 4, 8), config)); });
  vocabulary_ = listed(kTokens, 60);
  config.decoder_seq_length = 9;
  expect_error(ErrorKind::kInput, {"--decoder-seq-length is 9, make it longer"},
               [&] { read_all(t5(counting(4, 4, 8), config)); });
}

TEST_F(MaskedData, SplitsAreSharesOfDocuments) {
  GptSources sources;
  sources.shared = Blend{{counting(10, 3, 4)}, {}};
  sources.split = "70,30,0";
  MaskedDataConfig<BertDataset> config;
  config.samples.seq_length = 32;
  auto splits = open_masked_data(sources, {kOneEpoch, kOneEpoch, 0}, vocabulary_, config);
  EXPECT_EQ(splits[0]->num_samples(), 7);
  EXPECT_EQ(splits[1]->num_samples(), 3);
  EXPECT_EQ(splits[2], nullptr);
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_GE(splits[1]->members()[0]->index().sample(i).first, 21);
  }
  expect_error(ErrorKind::kInput, {"the test split (70,30,0) has no share"}, [&] {
    open_masked_data(sources, {1, 1, 1}, vocabulary_, config);
  });
}

}  // namespace
}  // namespace bev
