#include "data/gpt/fill_in_middle.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "tokenizer/text/utf8.h"

namespace bev {

namespace {

// Calls part(tokens, is_last) for each part between separators. Empty parts are dropped with their
// separator, except the last one.
template <class Part>
void for_parts(std::span<const std::int32_t> tokens, std::int32_t separator, const Part& part) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] != separator) continue;
    if (i > begin) part(tokens.subspan(begin, i - begin), false);
    begin = i + 1;
  }
  part(tokens.subspan(begin), true);
}

// Byte length of the first `points` code points.
std::size_t bytes_of_points(std::string_view text, std::uint64_t points) {
  std::size_t at = 0;
  for (; points > 0; --points) at += point_bytes(text[at]);
  return at;
}

}  // namespace

FillInMiddle::FillInMiddle(std::shared_ptr<const Tokenizer> tokenizer, const FimConfig& config)
    : tokenizer_(std::move(tokenizer)), config_(config) {}

void FillInMiddle::apply(std::span<std::int32_t> tokens, RandomState& random) const {
  Tokens out;
  out.reserve(tokens.size() + 16);
  for_parts(tokens, config_.eod_id, [&](std::span<const std::int32_t> document, bool last) {
    add_document(document, random, out);
    if (!last) out.push_back(config_.eod_id);
  });
  out.resize(tokens.size(), config_.pad_id);
  std::ranges::copy(out, tokens.begin());
}

void FillInMiddle::add_document(std::span<const std::int32_t> document, RandomState& random,
                                Tokens& out) const {
  bool split = config_.split_id && std::ranges::find(document, *config_.split_id) != document.end();
  if (!split) {
    add_permuted(document, config_.rate, random, out);
  } else if (!random.bernoulli(config_.rate)) {
    out.insert(out.end(), document.begin(), document.end());
  } else {
    for_parts(document, *config_.split_id, [&](std::span<const std::int32_t> part, bool last) {
      add_permuted(part, config_.fragment_rate, random, out);
      if (!last) out.push_back(*config_.split_id);
    });
  }
}

void FillInMiddle::add_permuted(std::span<const std::int32_t> part, double rate,
                                RandomState& random, Tokens& out) const {
  std::string text;
  bool permuted = random.bernoulli(rate);
  if (permuted) {
    text = text_of(part);
    permuted = config_.no_prefix.empty() || !text.starts_with(config_.no_prefix);
  }
  if (!permuted) {
    out.insert(out.end(), part.begin(), part.end());
    return;
  }
  std::uint64_t points = count_points(text);
  std::uint64_t first = random.interval(points), second = random.interval(points);
  std::string_view whole = text;
  std::size_t begin = bytes_of_points(whole, std::min(first, second));
  std::size_t end = bytes_of_points(whole, std::max(first, second));
  Tokens prefix = tokenizer_->encode(whole.substr(0, begin));
  Tokens middle = tokenizer_->encode(whole.substr(begin, end - begin));
  Tokens suffix = tokenizer_->encode(whole.substr(end));
  auto add = [&](const Tokens& tokens) { out.insert(out.end(), tokens.begin(), tokens.end()); };
  out.push_back(config_.prefix_id);
  bool suffix_first = random.bernoulli(config_.spm_rate);
  if (!suffix_first) add(prefix);
  out.push_back(config_.suffix_id);
  add(suffix);
  out.push_back(config_.middle_id);
  if (suffix_first) add(prefix);
  add(middle);
}

// Decodes without special tokens and as Python does: incomplete characters become U+FFFD.
std::string FillInMiddle::text_of(std::span<const std::int32_t> tokens) const {
  Tokens plain;
  std::ranges::copy_if(tokens, std::back_inserter(plain),
                       [&](std::int32_t id) { return !tokenizer_->is_special(id); });
  return to_valid_utf8(tokenizer_->decode(plain));
}

}  // namespace bev
