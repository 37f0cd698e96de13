#include "train/token_files.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "data/gpt/fill_in_middle.h"
#include "tokenizer/tokenizer.h"

namespace bev {

namespace {

// Splits at any white space.
std::vector<std::string> words_in(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  std::vector<std::string> words = split(text, ' ');
  std::erase(words, "");
  return words;
}

std::vector<std::string> words_of(const std::string& path) {
  std::vector<std::string> words = words_in(read_file(path));
  BEV_CHECK(!words.empty(), ErrorKind::kInput, path, ": names no token files");
  return words;
}

// Parses {"train": words, ...}; words are a list, or one string separated by white space.
std::array<std::optional<Blend>, 3> read_per_split(const std::string& path) {
  using Json = nlohmann::json;
  constexpr int kMaxDepth = 3;
  constexpr std::array<const char*, 3> kNames = {"train", "valid", "test"};
  Json file = Json::parse(read_json_object(path, kMaxDepth));
  std::array<std::optional<Blend>, 3> out;
  for (const auto& [key, value] : file.items()) {
    auto found = std::ranges::find(kNames, key);
    BEV_CHECK(found != kNames.end(), ErrorKind::kInput, path, ": ", quote(key),
              " is not train, valid or test");
    if (value.is_null()) continue;
    std::string where = concat(path, ": ", key);
    std::vector<std::string> words;
    if (value.is_string()) words = words_in(value.get<std::string>());
    for (const Json& word : value.is_array() ? value : Json::array()) {
      BEV_CHECK(word.is_string() || word.is_number(), ErrorKind::kInput, where, ": ",
                word.type_name(), " where a prefix or a weight should be");
      words.push_back(word.is_string() ? word.get<std::string>() : word.dump());
    }
    BEV_CHECK(!words.empty(), ErrorKind::kInput, where,
              " names no token files; give a list of prefixes, or leave it out");
    out[static_cast<std::size_t>(found - kNames.begin())] = parse_blend(words, where);
  }
  return out;
}

// Null unless --fim-data is given.
std::shared_ptr<const FillInMiddle> fill_in_middle(const DataConfig& config,
                                                   std::int64_t vocab_size) {
  const FimFlags& flags = config.fim;
  if (!flags.fim_data) return nullptr;
  BEV_CHECK(!config.tokenizer.empty(), ErrorKind::kConfig,
            "--tokenizer: is missing; --fim-data cuts text, which takes the tokenizer of the "
            "token files");
  std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(config.tokenizer, config.tiktoken);
  BEV_CHECK(vocab_size == 0 || tokenizer->vocab_size() <= vocab_size, ErrorKind::kConfig,
            "--tokenizer: ", config.tokenizer, " has ", tokenizer->vocab_size(),
            " tokens, more than --vocab-size ", vocab_size);
  auto id = [&](const std::string& token, const char* flag) {
    std::optional<std::int32_t> found = tokenizer->token_id(token);
    BEV_CHECK(found, ErrorKind::kConfig, flag, ": ", quote(token), " is no token of ",
              config.tokenizer);
    return *found;
  };
  FimConfig fim{.rate = flags.fim_rate,
                .spm_rate = flags.fim_spm_rate,
                .split_id = std::nullopt,
                .fragment_rate = flags.fim_fragment_rate,
                .no_prefix = flags.fim_no_prefix,
                .prefix_id = id(flags.fim_prefix_token, "--fim-prefix-token"),
                .middle_id = id(flags.fim_middle_token, "--fim-middle-token"),
                .suffix_id = id(flags.fim_suffix_token, "--fim-suffix-token"),
                .pad_id = id(flags.fim_pad_token, "--fim-pad-token"),
                .eod_id = id(flags.fim_eod_token, "--fim-eod-token")};
  if (!flags.fim_split_sample.empty()) {
    fim.split_id = id(flags.fim_split_sample, "--fim-split-sample");
  }
  return std::make_shared<FillInMiddle>(std::move(tokenizer), fim);
}

}  // namespace

GptSources gpt_sources(const DataConfig& config) {
  GptSources sources;
  sources.split = config.split_weights();
  if (!config.data_args_path.empty()) {
    sources.shared = parse_blend(words_of(config.data_args_path), config.data_args_path);
  } else if (!config.data_path.empty()) {
    sources.shared = parse_blend(config.data_path, "--data-path");
  }
  if (!config.per_split_data_args_path.empty()) {
    sources.own = read_per_split(config.per_split_data_args_path);
    return sources;
  }
  auto own = [](const std::vector<std::string>& words, const char* flag) -> std::optional<Blend> {
    if (words.empty()) return std::nullopt;
    return parse_blend(words, flag);
  };
  sources.own = {own(config.train_data_path, "--train-data-path"),
                 own(config.valid_data_path, "--valid-data-path"),
                 own(config.test_data_path, "--test-data-path")};
  return sources;
}

GptDataConfig gpt_data_config(const DataConfig& config, std::int64_t vocab_size,
                              std::uint64_t seed) {
  GptDataConfig out;
  out.samples.seq_length = config.seq_length;
  out.samples.reset_position_ids = config.reset_position_ids;
  out.samples.reset_attention_mask = config.reset_attention_mask;
  out.samples.eod_mask_loss = config.eod_mask_loss;
  out.samples.eod_id = static_cast<std::int32_t>(config.eod_id);
  out.samples.pad_id = static_cast<std::int32_t>(config.pad_id);
  out.samples.vocab_size = vocab_size;
  out.samples.fim = fill_in_middle(config, vocab_size);
  out.samples.fim_seed = seed;
  out.seed = seed;
  out.cache_path = config.data_cache_path;
  return out;
}

}  // namespace bev
