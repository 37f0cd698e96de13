#include "tokenizer/rank_file.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "base/text.h"
#include "tokenizer/formats/json_value.h"
#include "tokenizer/formats/tiktoken_file.h"
#include "tokenizer/models/vocabulary.h"
#include "tokenizer/pipeline/splitters.h"

namespace bev {

namespace {

constexpr const char* kConfigFile = "tokenizer_config.json";
constexpr const char* kPatternKey = "tiktoken_pattern";
constexpr const char* kTokensKey = "added_tokens_decoder";
constexpr int kMaxDepth = 64;

// Pattern implied by a rank file's name: cl100k_base.tiktoken, qwen.tiktoken; Llama 3's file is
// named tokenizer.model.
std::string pattern_of_name(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  std::string stem = name.substr(0, name.find('.'));
  if (named_pattern(stem)) return stem;
  return stem.starts_with("qwen") ? "qwen2" : "llama3";
}

// Tokens of {"100": {"content": "<|endoftext|>", "special": true}, ...}.
std::optional<std::vector<AddedToken>> added_tokens(const JsonValue& decoder) {
  if (!decoder.is_object() || decoder.members().empty()) return std::nullopt;
  std::vector<AddedToken> tokens;
  for (const auto& [id, value] : decoder.members()) {
    AddedToken token;
    token.content = token.shown = value.need_text("content");
    token.special = value.flag("special").value_or(false);
    bool number = !id.empty() && id.size() < 9 && id.find_first_not_of("0123456789") == id.npos;
    BEV_CHECK(number && std::stoll(id) < kMostTokenIds, ErrorKind::kInput, decoder.source(),
              ": the id ", id, " in ", kTokensKey, " is none");
    token.id = static_cast<std::int32_t>(std::stoll(id));
    BEV_CHECK(!token.content.empty(), ErrorKind::kInput, decoder.source(), ": a token in ",
              kTokensKey, " is empty");
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::optional<std::string> text_of(const JsonValue& token) {
  if (token.is_object()) return token.text("content");
  return token.is_string() ? std::optional(token.as_text()) : std::nullopt;
}

// Flags come before tokenizer_config.json, and that before the file's name.
RankFileSettings settings_of(const RankFile& file, const TiktokenOptions& tiktoken) {
  BEV_CHECK(tiktoken.pattern.empty() || file.pattern.empty(), ErrorKind::kConfig,
            "--tiktoken-pattern: ", file.path, ":", file.pattern,
            " names a pattern too; give one of them");
  RankFileSettings out;
  out.pattern = tiktoken.pattern + file.pattern;
  std::string config_path = join_path(parent_path(file.path), kConfigFile);
  if (path_exists(config_path)) {
    JsonDocument config(read_file(config_path), config_path);
    if (out.pattern.empty()) out.pattern = config.root().text(kPatternKey).value_or("");
    out.special_tokens = added_tokens(config.root()[kTokensKey]);
    out.eos_token = text_of(config.root()["eos_token"]);
  }
  if (out.pattern.empty()) out.pattern = pattern_of_name(file.path);
  if (!tiktoken.special_tokens.empty()) {
    out.special_tokens = read_special_tokens(tiktoken.special_tokens, read_file(file.path));
  }
  return out;
}

}  // namespace

bool is_rank_file(const std::string& path) {
  if (!path_exists(path) || is_directory(path)) return false;
  const std::string content = read_file(path);
  std::string_view line = std::string_view(content).substr(0, content.find('\n'));
  std::size_t space = line.find(' ');
  return space != line.npos && space > 0 &&
         line.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") == space;
}

std::optional<RankFile> find_rank_file(const std::string& tokenizer) {
  if (is_directory(tokenizer)) {
    std::string model = join_path(tokenizer, "tokenizer.model");
    if (is_rank_file(model)) return RankFile{model, ""};
    for (const std::string& name : list_directory(tokenizer)) {
      std::string path = join_path(tokenizer, name);
      bool named = name.ends_with(".tiktoken") || name == "tiktoken.model";
      if (named && is_rank_file(path)) return RankFile{path, ""};
    }
    return std::nullopt;
  }
  if (path_exists(tokenizer)) {
    return is_rank_file(tokenizer) ? std::optional(RankFile{tokenizer, ""}) : std::nullopt;
  }
  std::size_t colon = tokenizer.find_last_of(':');
  if (colon == tokenizer.npos || !path_exists(tokenizer.substr(0, colon))) return std::nullopt;
  return RankFile{tokenizer.substr(0, colon), tokenizer.substr(colon + 1)};
}

std::unique_ptr<Tokenizer> open_rank_file(const RankFile& file, const TiktokenOptions& tiktoken) {
  return read_tiktoken_file(read_file(file.path), settings_of(file, tiktoken), file.path);
}

std::vector<TokenizerFile> rank_file_folder(const std::string& path,
                                            const TiktokenOptions& tiktoken) {
  using Json = nlohmann::ordered_json;
  std::optional<RankFile> file = find_rank_file(path);
  BEV_CHECK(file, ErrorKind::kConfig, path, ": is no rank file");
  RankFileSettings settings = settings_of(*file, tiktoken);
  std::string config_path = join_path(parent_path(file->path), kConfigFile);
  Json config = Json::object();
  if (path_exists(config_path))
    config.update(Json::parse(read_json_object(config_path, kMaxDepth)));
  config[kPatternKey] = canonical_pattern(settings.pattern, file->path);
  if (settings.special_tokens) {
    Json tokens = Json::object();
    for (const AddedToken& token : *settings.special_tokens) {
      tokens[concat(token.id)] = {{"content", token.content}, {"lstrip", false},
                                  {"normalized", false},      {"rstrip", false},
                                  {"single_word", false},     {"special", token.special}};
    }
    config[kTokensKey] = std::move(tokens);
  }
  return {{"tokenizer.tiktoken", read_file(file->path)}, {kConfigFile, config.dump(1) + "\n"}};
}

}  // namespace bev
