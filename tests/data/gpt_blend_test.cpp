// Samples, blends and splits, also compared with megatron-core's output for the same files.
#include "data/gpt/gpt_blend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "tests/data/token_files.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

using nlohmann::json;
using test::counting_pair;
using test::pair_of;
using testing::ElementsAre;

using Words = std::vector<std::string>;

template <class T>
std::vector<T> list_of(PackedArray<T> values) {
  std::vector<T> out;
  for (std::size_t i = 0; i < values.size(); ++i) out.push_back(values[i]);
  return out;
}

TEST(Blend, TakesTheDatasetThatIsFurthestBehind) {
  EXPECT_THAT(list_of(blend_by_weights(std::vector{.3, .5, .2}, 10).datasets()),
              ElementsAre(1, 0, 2, 1, 0, 1, 2, 1, 0, 1));
  BlendIndex even = blend_by_weights(std::vector{.5, .5}, 6);
  EXPECT_THAT(list_of(even.datasets()), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(list_of(even.samples()), ElementsAre(0, 0, 1, 1, 2, 2));
}

TEST(Blend, SpendsEveryDatasetWhenExhaustive) {
  std::vector<std::int64_t> sizes{7, 1, 0, 4};
  BlendIndex blend = blend_exhaustively(sizes);
  std::vector<std::int64_t> seen(sizes.size());
  for (std::size_t i = 0; i < blend.datasets().size(); ++i) {
    EXPECT_EQ(blend.samples()[i], seen[static_cast<std::size_t>(blend.datasets()[i])]++);
  }
  EXPECT_EQ(seen, sizes);
}

TEST(Blend, RoundsSharesUp) {
  // The blend of 1001 samples at one half each has 1002.
  EXPECT_EQ(blend_share(1001, 0.5), 501);
  EXPECT_EQ(blend_share_with_surplus(1001, 0.5), 504);
  EXPECT_EQ(blend_share_with_surplus(0, 0.5), 0);
}

TEST(Blend, ReadsWeightsAndPrefixes) {
  Blend weighted = parse_blend(Words{"0.3", "a", "7e-1", " b "}, "--data-path");
  EXPECT_THAT(weighted.prefixes, ElementsAre("a", "b"));
  EXPECT_THAT(weighted.weights, ElementsAre(0.3, 0.7));
  EXPECT_THAT(parse_blend(Words{"a", "b"}, "").prefixes, ElementsAre("a", "b"));
  EXPECT_THAT(parse_blend(Words{"1", "2", "3"}, "").prefixes, ElementsAre("1", "2", "3"));
  for (const Words& bad : {Words{"a", "b", "1", "c"}, Words{"1", "a", "x", "b"}, Words{"0", "a"},
                           Words{"-1", "a"}, Words{"nan", "a"}, Words{"inf", "a"}}) {
    expect_error(ErrorKind::kConfig, {"--data-path: '", "weight above 0"},
                 [&] { parse_blend(bad, "--data-path"); });
  }
}

class GptData : public testing::Test {
 protected:
  GptData() {
    config_.samples.seq_length = 4;
    sources_.split = "1,0,0";
  }
  std::shared_ptr<const GptBlend> train(const Words& words, std::int64_t samples) {
    sources_.shared = parse_blend(words, "--data-path");
    return open_gpt_data(sources_, {samples, std::nullopt, std::nullopt}, config_)[0];
  }

  TempFolder folder_;
  GptSources sources_;
  GptDataConfig config_;
};

TEST_F(GptData, RefusesASplitWithoutTokens) {
  std::string prefix = counting_pair({5, 3, 7}).write(folder_, "p");
  sources_.shared = Blend{{prefix}, {}};
  sources_.split = "1,0,0";
  expect_error(ErrorKind::kInput, {"validation split (1,0,0)", "5 samples"}, [&] {
    open_gpt_data(sources_, {4, 5, 0}, config_);
  });
  sources_.split = "99,1,0";  // one percent of three sequences is none
  expect_error(ErrorKind::kInput, {"validation", "no tokens"}, [&] {
    open_gpt_data(sources_, {4, 5, 0}, config_);
  });
  GptSplits splits = open_gpt_data(sources_, {4, 0, 0}, config_);
  EXPECT_GE(splits[0]->num_samples(), 4);
  EXPECT_EQ(splits[1]->num_samples(), 0);
  EXPECT_EQ(splits[2], nullptr);
  sources_.shared.reset();
  sources_.own[0] = Blend{{prefix}, {}};
  expect_error(ErrorKind::kConfig, {"no validation data"}, [&] {
    open_gpt_data(sources_, {4, 5, 0}, config_);
  });
}

TEST_F(GptData, RefusesTokensOutsideOfTheVocabulary) {
  std::string prefix = counting_pair({10}).write(folder_, "p");
  config_.samples.vocab_size = 9;
  auto data = train({prefix}, 2);
  expect_error(ErrorKind::kInput, {"/p", "token 8 of sequence 0 is 9", "vocabulary of 9"}, [&] {
    for (std::int64_t i = 0; i < 2; ++i) data->sample(i);
  });
}

TEST_F(GptData, CutsDocumentsAtTheirEnds) {
  config_.samples.seq_length = 6;
  config_.samples.eod_id = 0;
  config_.samples.reset_position_ids = config_.samples.reset_attention_mask = true;
  config_.samples.eod_mask_loss = true;
  auto data = train({pair_of({{{0, 3, 0, 0, 5, 0, 7}}}).write(folder_, "p")}, 1);
  TokenSample sample = data->sample(0);
  EXPECT_THAT(sample.tokens, ElementsAre(0, 3, 0, 0, 5, 0));
  EXPECT_THAT(sample.targets, ElementsAre(3, 0, 0, 5, 0, 7));
  EXPECT_THAT(sample.weights, ElementsAre(0, 1, 0, 0, 1, 0));
  EXPECT_THAT(positions_of(sample), ElementsAre(0, 0, 1, 0, 0, 1));
  EXPECT_THAT(sample.documents, ElementsAre(1, 2, 1, 2));
  config_.samples.eod_id = -1;
  expect_error(ErrorKind::kConfig, {"--eod-id"}, [&] { train({folder_.path("p")}, 1); });
}

TEST_F(GptData, PaddingIsNoEndOfDocument) {
  config_.samples.seq_length = 6;
  config_.samples.eod_id = 0;
  config_.samples.reset_position_ids = config_.samples.reset_attention_mask = true;
  config_.drop_last_partial_validation_sequence = false;
  sources_.own[1] = Blend{{pair_of({{{3, 0, 4, 5}}}).write(folder_, "p")}, {}};
  auto data = open_gpt_data(sources_, {std::nullopt, kOneEpoch, std::nullopt}, config_)[1];
  ASSERT_EQ(data->num_samples(), 1);
  TokenSample sample = data->sample(0);
  EXPECT_THAT(sample.tokens, ElementsAre(3, 0, 4, 5, 0, 0));
  EXPECT_THAT(sample.targets, ElementsAre(0, 4, 5, 0, 0, 0));
  EXPECT_THAT(sample.weights, ElementsAre(1, 1, 1, 0, 0, 0));
  EXPECT_THAT(positions_of(sample), ElementsAre(0, 1, 0, 1, 2, 3));
  EXPECT_THAT(sample.documents, ElementsAre(2, 4));
}

TEST_F(GptData, BlendsBySizesTakeNoMoreThanOneEpoch) {
  Words words{counting_pair({9}).write(folder_, "a"), counting_pair({5, 4}).write(folder_, "b"),
              counting_pair({13}).write(folder_, "c")};
  EXPECT_EQ(train(words, 1000)->num_samples(), 7);
  EXPECT_EQ(train(words, 4)->num_samples(), 4);
  EXPECT_EQ(train(words, kOneEpoch)->num_samples(), 7);
  words[0] = counting_pair({3}).write(folder_, "short");
  expect_error(ErrorKind::kInput, {"/short", "too short for one sample of 4"},
               [&] { train(words, 4); });
  expect_error(ErrorKind::kConfig, {"needs a number of samples"}, [&] {
    train({"1", words[0], "2", words[1]}, kOneEpoch);
  });
}

std::vector<std::string> words_of(const json& flags, const char* name) {
  Words words;
  if (!flags.contains(name)) return words;
  for (const std::string word : flags[name]) {
    bool prefix = word.find_first_not_of("0123456789.") != std::string::npos;
    words.push_back(prefix ? BEV_SOURCE_DIR "/tests/golden/data/" + word : word);
  }
  return words;
}

GptSplits open_case(const json& flags) {
  auto flag = [&](const char* name, bool otherwise) { return flags.value(name, otherwise); };
  GptDataConfig config;
  config.seed = flags["seed"];
  config.samples = {.seq_length = flags["seq-length"],
                    .extra_token = flag("add-extra-token-to-sequence", true),
                    .reset_position_ids = flag("reset-position-ids", false),
                    .reset_attention_mask = flag("reset-attention-mask", false),
                    .eod_mask_loss = flag("eod-mask-loss", false),
                    .eod_id = flags["eod-id"],
                    .vocab_size = flags["vocab-size"]};
  config.drop_last_partial_validation_sequence =
      flag("drop-last-partial-validation-sequence", true);
  GptSources sources;
  sources.split = flags["split"];
  if (flags.contains("data-path")) sources.shared = parse_blend(words_of(flags, "data-path"), "");
  const char* own[] = {"train-data-path", "valid-data-path", "test-data-path"};
  SplitSizes sizes;
  for (std::size_t i = 0; i < 3; ++i) {
    if (flags.contains(own[i])) sources.own[i] = parse_blend(words_of(flags, own[i]), "");
    const json& size = flags["sizes"][i];
    sizes[i] = size.is_null() ? kOneEpoch : size.get<std::int64_t>();
  }
  return open_gpt_data(sources, sizes, config);
}

json index_of(const GptDataset& data) {
  json documents = json::array(), samples = json::array(), shuffle = json::array();
  const GptIndex& index = data.index();
  for (std::int64_t i = 0; i < index.num_documents(); ++i) documents.push_back(index.document(i));
  for (std::int64_t i = 0; i <= index.num_samples(); ++i) {
    samples.push_back({index.sample_start(i).position, index.sample_start(i).offset});
  }
  for (std::int64_t i = 0; i < index.num_samples(); ++i) shuffle.push_back(index.shuffled(i));
  return {{"document_index", documents}, {"sample_index", samples}, {"shuffle_index", shuffle}};
}

void expect_split(const GptBlend& data, const json& expected) {
  EXPECT_EQ(data.num_samples(), expected["num_samples"]);
  if (data.blend()) {
    EXPECT_EQ(json(list_of(data.blend()->datasets())), expected["dataset_index"]);
    EXPECT_EQ(json(list_of(data.blend()->samples())), expected["dataset_sample_index"]);
    for (std::size_t i = 0; i < data.members().size(); ++i) {
      EXPECT_EQ(index_of(*data.members()[i]), expected["datasets"][i]) << "dataset " << i;
    }
  } else {
    json index = index_of(*data.members()[0]);
    for (const char* name : {"document_index", "sample_index", "shuffle_index"}) {
      EXPECT_EQ(index[name], expected[name]) << name;
    }
  }
  for (std::size_t i = 0; i < expected["samples"].size(); ++i) {
    TokenSample sample = data.sample(static_cast<std::int64_t>(i));
    const json& want = expected["samples"][i];
    EXPECT_EQ(json(sample.tokens), want["tokens"]) << i;
    EXPECT_EQ(json(sample.targets), want["labels"]) << i;
    EXPECT_EQ(sample.weights, want["loss_mask"].get<std::vector<float>>()) << i;
    EXPECT_EQ(json(positions_of(sample)), want["position_ids"]) << i;
    EXPECT_EQ(json(sample.documents), want["document_lengths"]) << i;
  }
}

TEST(MegatronCore, GivesTheSameIndicesAndSamples) {
  json cases = json::parse(read_file(BEV_SOURCE_DIR "/tests/golden/data/samples.json"));
  ASSERT_GE(cases.size(), 15u);
  for (const json& entry : cases) {
    SCOPED_TRACE(entry["flags"].dump());
    GptSplits splits = open_case(entry["flags"]);
    const char* names[] = {"train", "valid", "test"};
    for (std::size_t i = 0; i < 3; ++i) {
      SCOPED_TRACE(names[i]);
      const json& expected = entry["expected"][names[i]];
      ASSERT_EQ(splits[i] == nullptr, expected.is_null());
      if (splits[i]) expect_split(*splits[i], expected);
    }
  }
}

}  // namespace
}  // namespace bev
