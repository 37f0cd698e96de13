#include <gtest/gtest.h>

#include <map>
#include <set>

#include "models/families/family.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

// As published, or as counted by transformers for the published config.json.
const std::map<std::string, std::int64_t> kParameters = {
    {"gpt2-124m", 124439808},
    {"gpt2-medium", 354823168},
    {"gpt2-large", 774030080},
    {"gpt2-xl", 1557611200},
    {"llama-tiny", 6843648},
    {"llama2-7b", 6738415616},
    {"llama2-13b", 13015864320},
    {"llama2-70b", 68976648192},
    {"llama3-8b", 8030261248},
    {"llama3-70b", 70553706496},
    {"llama3.1-8b", 8030261248},
    {"llama3.1-70b", 70553706496},
    {"llama3.1-405b", 405853388800},
    {"llama3.2-1b", 1235814400},
    {"llama3.2-3b", 3212749824},
    {"mistral-7b", 7241732096},
    {"qwen2.5-0.5b", 494032768},
    {"qwen2.5-1.5b", 1543714304},
    {"qwen2.5-3b", 3085938688},
    {"qwen2.5-7b", 7615616512},
    {"qwen2.5-14b", 14770033664},
    {"qwen2.5-32b", 32763876352},
    {"qwen2.5-72b", 72706203648},
    {"qwen3-0.6b", 596049920},
    {"qwen3-1.7b", 1720574976},
    {"qwen3-4b", 4022468096},
    {"qwen3-8b", 8190735360},
    {"qwen3-14b", 14768307200},
    {"qwen3-32b", 32762123264},
    {"gemma2-2b", 2614341888},
    {"gemma2-9b", 9241705984},
    {"gemma2-27b", 27227128320},
    {"gemma3-270m", 268098176},
    {"gemma3-1b", 999885952},
    {"gemma3-4b", 3880263168},
    {"gemma3-12b", 11766034176},
    {"gemma3-27b", 27009346304},
    {"phi3-mini", 3821079552},
    {"phi-4", 14659507200},
    {"pythia-70m", 70426624},
    {"pythia-160m", 162322944},
    {"pythia-410m", 405334016},
    {"pythia-1b", 1011781632},
    {"pythia-1.4b", 1414647808},
    {"pythia-2.8b", 2775208960},
    {"pythia-6.9b", 6857302016},
    {"pythia-12b", 11846072320},
    {"mixtral-8x7b", 46702792704},
    {"mixtral-8x22b", 140620634112},
    {"qwen1.5-moe-a2.7b", 14315784192},
    {"qwen3-30b-a3b", 30532122624},
    {"deepseek-v2-lite", 15706484224},
    {"deepseek-v3", 671026419200},
    {"gpt-oss-20b", 20914757184},
    {"gpt-oss-120b", 116829156672},
    {"gemma-2b", 2506172416},
    {"gemma-7b", 8537680896},
    {"afm-4.5b", 4619184640},
    {"minitron-4b", 4190509056},
    {"minitron-8b", 8271699968},
    {"nemotron4-15b", 15628775424},
    {"nemotron4-340b", 341029195776},
    {"seed-oss-36b", 36151104512},
    {"ernie4.5-0.3b", 360748032},
    {"starcoder2-3b", 3030371328},
    {"starcoder2-7b", 7173923840},
    {"starcoder2-15b", 15655899136},
    {"glm4-9b", 9400094720},
    {"glm4-32b", 32566081536},
    {"glm4.5-air", 106852251264},
    {"glm4.5", 352797829024},
    {"smollm3-3b", 3075098624},
    {"olmo2-1b", 1484916736},
    {"olmo2-7b", 7298617344},
    {"olmo2-13b", 13716198400},
    {"olmo2-32b", 32234279936},
    {"olmo3-7b", 7298011136},
    {"olmo3-32b", 32233522176},
    {"olmoe-1b-7b", 6919161856},
    {"granite3.3-2b", 2533539840},
    {"granite3.3-8b", 8170864640},
    {"stablelm2-1.6b", 1644515328},
    {"stablelm-3b", 2795443200},
    {"phi-1.5", 1418270720},
    {"phi-2", 2779683840},
    {"command-r7b", 8028033024},
    {"command-a", 111057580032},
    {"minimax-m2", 228689764864},
    {"ministral3-3b", 3429006336},
    {"ministral3-8b", 8489553920},
    {"ministral3-14b", 13506073600},
    {"exaone4-1.2b", 1279391488},
    {"exaone4-32b", 32003216384},
    {"ernie4.5-21b-a3b", 21825437888},
    {"ernie4.5-300b-a47b", 299484163264},
    {"apertus-8b", 8053338240},
    {"apertus-70b", 70599864640},
    {"llama4-scout", 107769861120},
    {"llama4-maverick", 400711848960},
    {"deepseek-v3.2", 671877944064},
    {"glm-5", 743911218432},
    {"hunyuan-7b", 7504568320},
    {"bert-tiny", 4416698},
    {"bert-base-uncased", 109514298},
    {"bert-base-cased", 108340804},
    {"bert-large-uncased", 335174458},
    {"bert-large-cased", 333610308},
    {"megatron-bert-110m", 108386944},
    {"megatron-bert-345m", 333671808},
    {"roberta-base", 124697433},
    {"roberta-large", 355412057},
    {"xlm-roberta-base", 278295186},
    {"xlm-roberta-large", 560142482},
    {"modernbert-base", 149655232},
    {"modernbert-large", 395881664},
};

TEST(Presets, HaveTheirPublishedParameters) {
  for (const std::string& name : preset_names()) {
    auto known = kParameters.find(name);
    ASSERT_NE(known, kParameters.end()) << name;
    EXPECT_EQ(count_parameters(preset(name)), known->second) << name;
  }
  EXPECT_EQ(preset_names().size(), kParameters.size());
}

TEST(Presets, BeginWithTheSmallestOfTheirFamily) {
  for (const ModelFamily& family : families()) {
    ASSERT_FALSE(family.presets.empty()) << family.name;
    std::int64_t first = count_parameters(family.presets.front().config);
    for (const Preset& preset : family.presets) {
      EXPECT_LE(first, count_parameters(preset.config)) << preset.name;
    }
  }
}

TEST(Presets, NamesAreUnique) {
  std::vector<std::string> names = preset_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

TEST(Presets, AreValidAndSurviveConfigJson) {
  for (const std::string& name : preset_names()) {
    ModelConfig config = preset(name);
    EXPECT_TRUE(config.problems().empty()) << name;
    ModelConfig back = from_hf(HfConfig::parse(to_hf(config, Dtype::kBf16).dump()));
    EXPECT_EQ(differing_fields(config, back), std::vector<std::string>{}) << name;
  }
}

TEST(Presets, UnknownNamesSuggestTheNearest) {
  expect_error(ErrorKind::kConfig,
               {"--preset: 'lama3-8b' is not known", "did you mean llama3-8b?", "pythia-70m"},
               [] { preset("lama3-8b"); });
  expect_error(ErrorKind::kConfig, {"'gpt2' is not known", "did you mean gpt2-124m?"},
               [] { preset("gpt2"); });
  expect_error(ErrorKind::kConfig, {"'' is not known"}, [] { preset(""); });
}

}  // namespace
}  // namespace bev
