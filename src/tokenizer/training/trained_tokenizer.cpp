#include "tokenizer/training/trained_tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "tokenizer/pipeline/splitters.h"
#include "tokenizer/text/regex.h"

namespace bev {

namespace {

using Json = nlohmann::ordered_json;

struct PatternName {
  std::string_view name;
  std::string_view known;  // name in named_pattern
};

// For cl100k, Hugging Face files use llama3's equivalent expression, because Oniguruma reads
// cl100k's own differently.
constexpr std::array<PatternName, 4> kNames = {
    {{"llama3", "llama3"}, {"cl100k", "llama3"}, {"o200k", "o200k_base"}, {"qwen2", "qwen2"}}};

Json byte_level(bool prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json split_then_bytes(std::string_view expression) {
  Json split{{"type", "Split"},
             {"pattern", {{"Regex", expression}}},
             {"behavior", "Isolated"},
             {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(false, false)})}};
}

Json model_json(const TrainedBpe& trained) {
  Json merges = Json::array();
  Json::object_t vocabulary;  // only appended to: its lookup is linear
  for (std::size_t id = 0; id < trained.tokens.size(); ++id) {
    vocabulary.emplace_back(trained.tokens[id], id);
  }
  for (auto [left, right] : trained.merges) {
    merges.push_back(Json::array({trained.tokens[static_cast<std::size_t>(left)],
                                  trained.tokens[static_cast<std::size_t>(right)]}));
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

Json added_tokens_json(const std::vector<std::string>& tokens) {
  Json out = Json::array();
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    out.push_back({{"id", id},
                   {"content", tokens[id]},
                   {"single_word", false},
                   {"lstrip", false},
                   {"rstrip", false},
                   {"normalized", false},
                   {"special", true}});
  }
  return out;
}

}  // namespace

std::string byte_level_pre_tokenizer(std::string_view pattern) {
  if (pattern == "gpt2") return byte_level(false, true).dump();
  auto named = std::ranges::find(kNames, pattern, &PatternName::name);
  if (named != kNames.end()) return split_then_bytes(*named_pattern(named->known)).dump();
  // A plain word is not meant as an expression, which would match only that word.
  bool expression = pattern.find_first_of(R"(\[](){}|.*+?^$)") != pattern.npos;
  BEV_CHECK(expression, ErrorKind::kConfig, "--pattern: ", quote(pattern),
            " is not llama3, gpt2, cl100k, o200k, qwen2 or a regular expression");
  try {
    Regex(pattern, RegexDialect::kOniguruma);
  } catch (const Error& error) {
    BEV_FAIL(ErrorKind::kConfig, "--pattern: ", error.what());
  }
  return split_then_bytes(pattern).dump();
}

std::string trained_tokenizer_json(const TrainedBpe& trained, std::string_view pre_tokenizer,
                                   const std::vector<std::string>& special_tokens) {
  Json tokenizer{{"version", "1.0"},
                 {"truncation", nullptr},
                 {"padding", nullptr},
                 {"added_tokens", added_tokens_json(special_tokens)},
                 {"normalizer", nullptr},
                 {"pre_tokenizer", Json::parse(pre_tokenizer)},
                 {"post_processor", nullptr},
                 {"decoder", byte_level(true, true)},
                 {"model", model_json(trained)}};
  return tokenizer.dump(1) + "\n";
}

void write_trained_tokenizer(const std::string& folder, const TrainedBpe& trained,
                             const std::string& pre_tokenizer,
                             const std::vector<std::string>& special_tokens) {
  Json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"eos_token", special_tokens.front()},
              {"clean_up_tokenization_spaces", false}};
  make_directories(folder);
  write_file(join_path(folder, "tokenizer.json"),
             trained_tokenizer_json(trained, pre_tokenizer, special_tokens));
  write_file(join_path(folder, "tokenizer_config.json"), config.dump(1) + "\n");
}

}  // namespace bev
