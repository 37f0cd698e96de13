// Fill-in-the-middle compared with Megatron-LM's output for the same files.
#include "data/gpt/fill_in_middle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "data/gpt/gpt_blend.h"
#include "tokenizer/tokenizer.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::ElementsAre;

const std::string kGolden = BEV_SOURCE_DIR "/tests/golden/data/";

std::shared_ptr<const Tokenizer> tokenizer() {
  return open_tokenizer(kGolden + "fim_tokenizer.json");
}

FimConfig config_of(const json& flags) {
  FimConfig config{.rate = flags["fim-rate"],
                   .spm_rate = flags["fim-spm-rate"],
                   .split_id = std::nullopt,
                   .fragment_rate = flags.value("fim-fragment-rate", 0.0),
                   .no_prefix = flags.value("fim-no-prefix", ""),
                   .prefix_id = tokenizer()->token_id("<fim_prefix>").value(),
                   .middle_id = tokenizer()->token_id("<fim_middle>").value(),
                   .suffix_id = tokenizer()->token_id("<fim_suffix>").value(),
                   .pad_id = tokenizer()->token_id("<fim_pad>").value(),
                   .eod_id = tokenizer()->token_id("<|endoftext|>").value()};
  if (flags.contains("fim-split-sample")) {
    config.split_id = tokenizer()->token_id(flags["fim-split-sample"].get<std::string>());
  }
  return config;
}

std::shared_ptr<const GptBlend> open_code(const json& flags) {
  GptDataConfig config;
  config.seed = config.samples.fim_seed = flags["seed"];
  config.samples.seq_length = flags["seq-length"];
  config.samples.fim = std::make_shared<FillInMiddle>(tokenizer(), config_of(flags));
  GptSources sources{.shared = Blend{{kGolden + "code"}, {}}, .split = "1", .own = {}};
  return open_gpt_data(sources, {flags["samples"].get<std::int64_t>(), std::nullopt, std::nullopt},
                       config)[0];
}

TEST(FillInMiddle, IsThatOfMegatronReadInOrder) {
  json cases = json::parse(read_file(kGolden + "fim.json"));
  ASSERT_GE(cases.size(), 8u);
  for (const json& entry : cases) {
    SCOPED_TRACE(entry["flags"].dump());
    std::shared_ptr<const GptBlend> data = open_code(entry["flags"]);
    std::vector<RandomState> streams(1, RandomState(entry["flags"]["seed"].get<std::uint64_t>()));
    for (std::size_t i = 0; i < entry["expected"].size(); ++i) {
      TokenSample sample = data->sample(static_cast<std::int64_t>(i), streams);
      ASSERT_EQ(json(sample.tokens), entry["expected"][i]["tokens"]) << i;
      ASSERT_EQ(json(sample.targets), entry["expected"][i]["labels"]) << i;
    }
  }
}

// Training reads in any order, from several threads and ranks.
TEST(FillInMiddle, OfASampleDoesNotDependOnWhatWasReadBefore) {
  json flags{{"seed", 4294967295},
             {"seq-length", 24},
             {"samples", 20},
             {"fim-rate", 1.0},
             {"fim-spm-rate", 0.5}};
  std::shared_ptr<const GptBlend> data = open_code(flags), again = open_code(flags);
  std::vector<std::vector<std::int32_t>> forwards, backwards;
  for (std::int64_t i = 0; i < 20; ++i) forwards.push_back(data->sample(i).tokens);
  for (std::int64_t i = 19; i >= 0; --i) backwards.push_back(again->sample(i).tokens);
  std::ranges::reverse(backwards);
  EXPECT_EQ(forwards, backwards);
  std::vector<RandomState> stream(1, RandomState(4294967295));
  EXPECT_EQ(forwards[0], data->sample(0, stream).tokens);
}

TEST(FillInMiddle, KeepsTheLengthAndTheText) {
  FimConfig config = config_of({{"fim-rate", 1.0}, {"fim-spm-rate", 0.0}});
  FillInMiddle fim(tokenizer(), config);
  std::vector<std::int32_t> text = tokenizer()->encode("the wise \xe4\xb8\xad\xe6\x96\x87 end");
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    // Enough room for the three sentinel tokens and for tokens that splitting adds.
    std::vector<std::int32_t> tokens = text;
    tokens.push_back(config.eod_id);
    tokens.resize(text.size() + 40, config.eod_id);
    RandomState random(seed);
    fim.apply(tokens, random);
    ASSERT_EQ(tokens.size(), text.size() + 40);
    auto find = [&](std::int32_t id) { return std::ranges::find(tokens, id); };
    auto suffix = find(config.suffix_id), middle = find(config.middle_id);
    auto end = find(config.eod_id);
    ASSERT_EQ(tokens[0], config.prefix_id);
    ASSERT_TRUE(suffix < middle && middle < end);
    auto text_in = [&](auto from, auto to) {
      return tokenizer()->decode(std::vector<std::int32_t>(from + 1, to));
    };
    EXPECT_EQ(text_in(tokens.begin(), suffix) + text_in(middle, end) + text_in(suffix, middle),
              tokenizer()->decode(text));
  }
}

TEST(FillInMiddle, OfNothingIsTheThreeTokens) {
  FimConfig config = config_of({{"fim-rate", 1.0}, {"fim-spm-rate", 1.0}});
  FillInMiddle fim(tokenizer(), config);
  RandomState random(1);
  // End-of-document tokens without preceding text vanish.
  std::vector<std::int32_t> tokens(5, config.eod_id);
  fim.apply(tokens, random);
  EXPECT_THAT(tokens, ElementsAre(config.prefix_id, config.suffix_id, config.middle_id,
                                  config.pad_id, config.pad_id));
  std::vector<std::int32_t> none;
  fim.apply(none, random);
  EXPECT_TRUE(none.empty());
}

}  // namespace
}  // namespace bev
