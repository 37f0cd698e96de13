#include "chat/token_spans.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/json_check.h"
#include "chat/jinja/python_text.h"
#include "tokenizer/pipeline/byte_level.h"
#include "tokenizer/pipeline/decoder.h"
#include "tokenizer/text/unicode.h"
#include "tokenizer/text/utf8.h"

namespace bev {

namespace {

// How a vocabulary represents bytes and spaces.
enum class Writing : std::uint8_t {
  kByteLevel,  // byte-to-unicode characters
  kMetaspace,  // U+2581 for a space, <0x41> for a byte
};

constexpr std::string_view kMetaspaceMark = "\xe2\x96\x81";

std::string surface(const std::string& token, Writing writing) {
  if (writing == Writing::kByteLevel) return from_byte_level(token).value_or(token);
  bool is_byte = token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
  if (is_byte) return std::string(1, static_cast<char>(std::stoi(token.substr(3, 2), nullptr, 16)));
  return replace_all(token, kMetaspaceMark, " ");
}

// Tokens must be consecutive in the text. Only white space may be skipped between them (special
// tokens strip it), and a space may be inserted before a word.
class Alignment {
 public:
  Alignment(const Tokenizer& tokenizer, std::string_view text, Writing writing)
      : tokenizer_(tokenizer), text_(text), writing_(writing) {}

  std::optional<std::vector<TokenSpan>> run(std::span<const std::int32_t> ids) {
    for (std::int32_t id : ids) {
      std::optional<std::string> token = tokenizer_.token_text(id);
      if (!token || !place(surface(*token, writing_))) return std::nullopt;
    }
    if (at_ < text_.size() && !skip_space(text_.size())) return std::nullopt;
    return std::move(spans_);
  }

 private:
  std::string_view rest() const { return text_.substr(at_); }

  bool place(std::string_view wanted) {
    if (rest().starts_with(wanted)) return take(wanted.size());
    bool added_space = wanted.starts_with(' ') && rest().starts_with(wanted.substr(1));
    if (writing_ == Writing::kMetaspace && added_space) return take(wanted.size() - 1);
    std::size_t found = rest().find(wanted);
    return found != std::string_view::npos && !wanted.empty() && skip_space(at_ + found) &&
           take(wanted.size());
  }
  bool take(std::size_t bytes) {
    spans_.push_back({at_, at_ + bytes});
    at_ += bytes;
    return true;
  }
  // Skips to `end` if there is only white space, which is attributed to the previous token.
  bool skip_space(std::size_t end) {
    if (!jinja::strip(text_.substr(at_, end - at_), jinja::Side::kLeft).empty()) return false;
    at_ = end;
    if (!spans_.empty()) spans_.back().end = end;
    return true;
  }

  const Tokenizer& tokenizer_;
  std::string_view text_;
  Writing writing_;
  std::size_t at_ = 0;
  std::vector<TokenSpan> spans_;
};

// Text in a Unicode normal form, which many tokenizers apply, with the origin of its bytes.
struct Normalized {
  std::string text;
  std::vector<TokenSpan> origins;  // source span of each byte

  Normalized(std::string_view from, NormalForm form) {
    for (std::size_t at = 0; at < from.size();) {
      std::size_t bytes = first_grapheme(from.substr(at));
      text += normal_form(from.substr(at, bytes), form);
      origins.resize(text.size(), {at, at + bytes});
      at += bytes;
    }
  }
  std::vector<TokenSpan> original(std::vector<TokenSpan> spans) const {
    for (TokenSpan& span : spans) {
      if (span.begin == span.end) continue;
      span = {origins[span.begin].begin, origins[span.end - 1].end};
    }
    return spans;
  }
};

}  // namespace

std::vector<TokenSpan> token_spans(const Tokenizer& tokenizer, std::string_view text,
                                   std::span<const std::int32_t> ids) {
  for (Writing writing : {Writing::kByteLevel, Writing::kMetaspace}) {
    if (auto spans = Alignment(tokenizer, text, writing).run(ids)) return *spans;
  }
  for (NormalForm form : {NormalForm::kNfc, NormalForm::kNfkc}) {
    Normalized normalized(text, form);
    for (Writing writing : {Writing::kByteLevel, Writing::kMetaspace}) {
      auto spans = Alignment(tokenizer, normalized.text, writing).run(ids);
      if (spans) return normalized.original(*std::move(spans));
    }
  }
  BEV_FAIL(ErrorKind::kInput, "the tokenizer changes the text ", quote(text),
           ", so that its tokens cannot be told to be the assistant's or not");
}

std::vector<std::uint8_t> assistant_mask(std::string_view text, std::span<const TokenSpan> tokens,
                                         std::span<const jinja::GenerationSpan> generated) {
  std::vector<std::size_t> starts;  // byte offset of each character
  for (std::size_t at = 0; at < text.size(); at += point_bytes(text[at])) starts.push_back(at);
  auto token_of = [&](std::size_t character) -> std::optional<std::size_t> {
    if (character >= starts.size()) return std::nullopt;
    std::size_t begin = starts[character];
    std::size_t end = begin + point_bytes(text[begin]);
    // Ends never decrease, so binary search finds the first token that overlaps the character.
    auto found = std::ranges::upper_bound(tokens, begin, {}, &TokenSpan::end);
    bool has = found != tokens.end() && found->begin < end;
    return has ? std::optional(static_cast<std::size_t>(found - tokens.begin())) : std::nullopt;
  };
  std::vector<std::uint8_t> mask(tokens.size());
  for (const jinja::GenerationSpan& span : generated) {
    if (span.begin >= span.end) continue;
    std::optional<std::size_t> first = token_of(span.begin), last = token_of(span.end - 1);
    if (!first) break;
    std::size_t end = last ? *last + 1 : tokens.size();
    for (std::size_t i = *first; i < end; ++i) mask[i] = 1;
  }
  return mask;
}

}  // namespace bev
