#include "data/marked_text.h"

#include <algorithm>

#include "base/plural.h"
#include "tokenizer/text/utf8.h"

namespace bev {

namespace {

std::string_view open_mark(MaskMarks marks) {
  return marks == MaskMarks::kFaint ? "\x1b[2m" : "\u27e6";
}
std::string_view close_mark(MaskMarks marks) {
  return marks == MaskMarks::kFaint ? "\x1b[0m" : "\u27e7";
}

// Tokens of a sample that are targets of the loss.
std::vector<std::uint8_t> learned_tokens(const TokenSample& sample) {
  std::vector<std::uint8_t> learned(sample.tokens.size());
  for (std::size_t t = 1; t < learned.size(); ++t) learned[t] = sample.weights[t - 1] > 0;
  return learned;
}

// The last document without a loss and with one token only, again and again.
bool is_padding(std::span<const std::int32_t> ids, std::span<const std::uint8_t> learned) {
  bool same = std::ranges::all_of(ids, [&](std::int32_t id) { return id == ids[0]; });
  return same && std::ranges::count(learned, 1) == 0;
}

}  // namespace

std::string marked_text(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                        std::span<const std::uint8_t> learned, MaskMarks marks) {
  std::string out, before;  // `before`: the text of the tokens so far
  for (std::size_t begin = 0; begin < ids.size();) {
    std::size_t end = begin + 1;
    while (end < ids.size() && learned[end] == learned[begin]) ++end;
    // Text depends on what precedes it: some decoders drop a space at the beginning.
    std::string text = tokenizer.decode(ids.first(end));
    std::string part = text.starts_with(before) ? text.substr(before.size())
                                                : tokenizer.decode(ids.subspan(begin, end - begin));
    if (learned[begin]) {
      out += part;
    } else {
      out.append(open_mark(marks)).append(part).append(close_mark(marks));
    }
    before = std::move(text);
    begin = end;
  }
  return to_valid_utf8(out);
}

std::string marked_text(const Tokenizer& tokenizer, const TokenSample& sample, MaskMarks marks) {
  const std::vector<std::uint8_t> learned = learned_tokens(sample);
  std::string out;
  std::size_t at = 0;
  for (std::size_t i = 0; i < sample.documents.size(); ++i) {
    auto length = static_cast<std::size_t>(sample.documents[i]);
    auto ids = std::span(sample.tokens).subspan(at, length);
    auto mask = std::span(learned).subspan(at, length);
    bool last = i > 0 && i + 1 == sample.documents.size();
    if (!out.empty() && !out.ends_with('\n')) out.push_back('\n');
    out += last && is_padding(ids, mask)
               ? concat("(", count_of(static_cast<std::int64_t>(length), "token"), " of padding)")
               : marked_text(tokenizer, ids, mask, marks);
    at += length;
  }
  return out;
}

}  // namespace bev
