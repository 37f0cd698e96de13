#include "infer/text_stream.h"

#include <algorithm>

namespace bev {

namespace {

constexpr std::size_t kPromptIds = 8;

// A character, or bytes that are none.
struct Stretch {
  std::size_t bytes = 0;
  bool valid = false;
  bool cut = false;  // could become valid with more text
};

// The first stretch of a text that is not empty; Unicode 15, table 3-7.
Stretch first_stretch(std::string_view text) {
  auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  unsigned lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xc2 || lead > 0xf4) return {1, false, false};
  std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, false, true};
    if (byte(i) < low || byte(i) > high) return {i, false, false};
    low = 0x80;
    high = 0xbf;
  }
  return {length, true, false};
}

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// Bytes of `text` up to the U+FFFDs at its end.
std::size_t without_replacements(std::string_view text) {
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  return text.size();
}

}  // namespace

std::size_t whole_characters(std::string_view text) {
  // A cut character is at most three bytes.
  std::size_t begin = text.size() - std::min<std::size_t>(text.size(), 3);
  for (std::size_t at = begin; at < text.size(); ++at) {
    if (first_stretch(text.substr(at)).cut) return at;
  }
  return text.size();
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    Stretch stretch = first_stretch(text);
    out.append(stretch.valid ? text.substr(0, stretch.bytes) : kReplacement);
    text.remove_prefix(stretch.bytes);
  }
  return out;
}

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt)
    : tokenizer_(tokenizer) {
  std::span<const std::int32_t> end = prompt.last(std::min(prompt.size(), kPromptIds));
  ids_.assign(end.begin(), end.end());
  shown_ids_ = ids_.size();
  shown_ = tokenizer_.decode(ids_);
}

std::string TextStream::waiting_text() {
  std::string whole = tokenizer_.decode(ids_);
  if (!whole.starts_with(shown_)) {
    // Tokens of single bytes are decoded together, so a broken one can change what went before.
    // That is shown already; the new ids are then read without it.
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(shown_ids_));
    shown_ids_ = 0;
    shown_.clear();
    whole = tokenizer_.decode(ids_);
  }
  return whole.substr(shown_.size());
}

std::string TextStream::add(std::int32_t token) {
  ids_.push_back(token);
  std::string text = waiting_text();
  std::size_t ready = whole_characters(text);
  // Some tokenizers write U+FFFD for the bytes of a character that is not whole yet.
  constexpr std::size_t kMostTokens = 4;  // of a character
  if (ids_.size() - shown_ids_ < kMostTokens) ready = without_replacements(text.substr(0, ready));
  std::string out = replace_invalid_utf8(std::string_view(text).substr(0, ready));
  shown_.append(text, 0, ready);
  if (ready < text.size()) return out;
  // All is shown: the ids of this piece are what goes before the next.
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(shown_ids_));
  shown_ids_ = ids_.size();
  shown_ = tokenizer_.decode(ids_);
  return out;
}

std::string TextStream::finish() {
  std::string text = waiting_text();
  shown_.append(text);
  return replace_invalid_utf8(text);
}

}  // namespace bev
