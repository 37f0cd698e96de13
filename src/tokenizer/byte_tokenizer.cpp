#include "tokenizer/byte_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_check.h"
#include "tokenizer/pipeline/byte_level.h"
#include "tokenizer/training/trained_tokenizer.h"

namespace bev {

namespace {
using Json = nlohmann::json;

std::vector<std::string> byte_characters() {
  std::vector<std::string> characters;
  for (CodePoint point : byte_points()) append_point(characters.emplace_back(), point);
  return characters;
}

// The member, or null if there is none.
const Json& member(const Json& object, const char* key, const Json& null) {
  if (!object.is_object()) return null;
  auto found = object.find(key);
  return found == object.end() ? null : *found;
}

bool is_absent(const Json& value) {
  return value.is_null() || (value.is_array() && value.empty()) || value == "";
}

bool is_byte_model(const Json& model, const Json& null) {
  const Json& vocab = member(model, "vocab", null);
  if (member(model, "type", null) != "BPE" || !vocab.is_object()) return false;
  if (vocab.size() != ByteTokenizer::kVocabSize) return false;
  const std::vector<std::string> characters = byte_characters();
  for (std::size_t byte = 0; byte < characters.size(); ++byte) {
    auto found = vocab.find(characters[byte]);
    if (found == vocab.end() || !found->is_number_integer() || *found != byte) return false;
  }
  const Json& dropout = member(model, "dropout", null);
  return is_absent(member(model, "merges", null)) && (dropout.is_null() || dropout == 0.0) &&
         is_absent(member(model, "continuing_subword_prefix", null)) &&
         is_absent(member(model, "end_of_word_suffix", null));
}
}  // namespace

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids(text.size());
  std::transform(text.begin(), text.end(), ids.begin(),
                 [](char byte) { return static_cast<unsigned char>(byte); });
  return ids;
}

std::string ByteTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (std::int32_t id : ids) {
    if (id >= 0 && id < kVocabSize) text.push_back(static_cast<char>(id));
  }
  return text;
}

std::optional<std::int32_t> ByteTokenizer::token_id(std::string_view token) const {
  std::optional<std::string> bytes = from_byte_level(token);
  if (!bytes || bytes->size() != 1) return std::nullopt;
  return static_cast<unsigned char>((*bytes)[0]);
}

std::optional<std::string> ByteTokenizer::token_text(std::int32_t id) const {
  if (id < 0 || id >= kVocabSize) return std::nullopt;
  std::string text;
  append_point(text, byte_points()[static_cast<std::size_t>(id)]);
  return text;
}

std::string byte_tokenizer_json() {
  constexpr std::string_view kPreTokenizer =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false})";
  return trained_tokenizer_json({.tokens = byte_characters(), .merges = {}}, kPreTokenizer, {});
}

std::string byte_tokenizer_config_json() {
  const nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                         {"add_prefix_space", false},
                                         {"clean_up_tokenization_spaces", false}};
  return config.dump(2) + "\n";
}

bool is_byte_tokenizer(std::string_view json, const std::string& source) {
  constexpr std::size_t kMostBytes = 1 << 20;  // 256 entries take about 10 KB with any spacing
  if (json.size() > kMostBytes) return false;
  check_json(json, source, 64);
  const Json tokenizer = Json::parse(json);
  const Json null;
  const Json& pre_tokenizer = member(tokenizer, "pre_tokenizer", null);
  const Json& post_processor = member(tokenizer, "post_processor", null);
  // Without merges, the regular expression has no effect; a ByteLevel post-processor changes
  // offsets only.
  return is_byte_model(member(tokenizer, "model", null), null) &&
         is_absent(member(tokenizer, "added_tokens", null)) &&
         is_absent(member(tokenizer, "normalizer", null)) &&
         is_absent(member(tokenizer, "truncation", null)) &&
         is_absent(member(tokenizer, "padding", null)) &&
         member(pre_tokenizer, "type", null) == "ByteLevel" &&
         member(pre_tokenizer, "add_prefix_space", null) == false &&
         member(member(tokenizer, "decoder", null), "type", null) == "ByteLevel" &&
         (post_processor.is_null() || member(post_processor, "type", null) == "ByteLevel");
}

}  // namespace bev
