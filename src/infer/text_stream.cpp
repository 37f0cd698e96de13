#include "infer/text_stream.h"

#include <algorithm>

namespace bev {

namespace {

constexpr std::size_t kPromptIds = 8;

// A character, or bytes that are not one.
struct Stretch {
  std::size_t bytes = 0;
  bool valid = false;
  bool cut = false;  // truncated: could become valid with more text
};

// The first stretch of a non-empty text; Unicode 15, table 3-7.
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

// Length of `text` without trailing U+FFFD.
std::size_t without_replacements(std::string_view text) {
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  return text.size();
}

}  // namespace

std::size_t whole_characters(std::string_view text) {
  // A truncated character has at most three bytes.
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
    // Single-byte tokens are decoded together, so an invalid one can change earlier text, which was
    // already output; the new ids are then decoded without it.
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
  // Some tokenizers write U+FFFD for the bytes of an incomplete character.
  constexpr std::size_t kMostTokens = 4;  // tokens of one character
  if (ids_.size() - shown_ids_ < kMostTokens) ready = without_replacements(text.substr(0, ready));
  std::string out = replace_invalid_utf8(std::string_view(text).substr(0, ready));
  shown_.append(text, 0, ready);
  if (ready < text.size()) return out;
  // Everything was output: the ids of this piece become the context of the next.
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
