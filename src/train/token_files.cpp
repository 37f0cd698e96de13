#include "train/token_files.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"

namespace bev {

namespace {

// Words between any white space.
std::vector<std::string> words_of(const std::string& path) {
  std::string text = read_file(path);
  std::ranges::replace_if(
      text, [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  std::vector<std::string> words = split(text, ' ');
  std::erase(words, "");
  BEV_CHECK(!words.empty(), ErrorKind::kInput, path, ": names no token files");
  return words;
}

}  // namespace

GptSources gpt_sources(const DataConfig& config) {
  GptSources sources;
  sources.split = config.split;
  if (!config.data_args_path.empty()) {
    sources.shared = parse_blend(words_of(config.data_args_path), config.data_args_path);
  } else if (!config.data_path.empty()) {
    sources.shared = parse_blend(config.data_path, "--data-path");
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
  out.seed = seed;
  out.cache_path = config.data_cache_path;
  return out;
}

}  // namespace bev
