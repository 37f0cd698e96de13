#include "tokenizer/null_tokenizer.h"

#include <charconv>

#include "base/error.h"
#include "base/json_check.h"
#include "base/text.h"

namespace bev {

std::optional<std::int32_t> NullTokenizer::token_id(std::string_view token) const {
  std::int32_t id = -1;
  auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), id);
  if (error != std::errc() || end != token.data() + token.size()) return std::nullopt;
  if (id < 0 || id >= vocab_size()) return std::nullopt;
  return id;
}

std::optional<std::string> NullTokenizer::token_text(std::int32_t id) const {
  if (id < 0 || id >= vocab_size()) return std::nullopt;
  return concat(id);
}

std::vector<std::int32_t> NullTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  for (const std::string& word : split(text, ' ')) {
    if (trim(word).empty()) continue;
    std::optional<std::int32_t> id = token_id(trim(word));
    BEV_CHECK(id.has_value(), ErrorKind::kInput, "null tokenizer: ", quote(word),
              " is no id below ", vocab_size());
    ids.push_back(*id);
  }
  return ids;
}

std::string NullTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string out;
  for (std::int32_t id : ids) {
    if (std::optional<std::string> text = token_text(id)) {
      out.append(out.empty() ? "" : " ").append(*text);
    }
  }
  return out;
}

}  // namespace bev
