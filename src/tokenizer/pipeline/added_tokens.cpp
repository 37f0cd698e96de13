#include "tokenizer/pipeline/added_tokens.h"

#include <algorithm>
#include <numeric>

#include "tokenizer/text/unicode.h"

namespace bev {

namespace {

bool ends_with_word(std::string_view text) {
  return !text.empty() && has_trait(decode_last_point(text).point, trait::kWord);
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && has_trait(decode_point(text, 0).point, trait::kWord);
}

// Start of the trailing spaces of the text.
std::size_t end_spaces(std::string_view text) {
  while (!text.empty()) {
    DecodedPoint last = decode_last_point(text);
    if (!has_trait(last.point, trait::kSpace)) break;
    text.remove_suffix(last.bytes);
  }
  return text.size();
}

std::size_t start_spaces(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    DecodedPoint next = decode_point(text, at);
    if (!has_trait(next.point, trait::kSpace)) break;
    at += next.bytes;
  }
  return at;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& text = tokens_[i].normalized ? tokens_[i].shown : tokens_[i].content;
    if (text.empty()) continue;
    Searcher& searcher = tokens_[i].normalized ? normalized_ : raw_;
    searcher.trie.add(text, static_cast<std::int32_t>(i));
    searcher.starts[static_cast<unsigned char>(text[0])] = true;
    searcher.any = true;
  }
  by_id_.resize(tokens_.size());
  std::iota(by_id_.begin(), by_id_.end(), std::size_t{0});
  std::ranges::stable_sort(by_id_, {}, [&](std::size_t i) { return tokens_[i].id; });
}

const AddedToken* AddedTokens::find(std::int32_t id) const {
  auto id_at = [&](std::size_t i) { return tokens_[i].id; };
  auto found = std::ranges::lower_bound(by_id_, id, {}, id_at);
  return found == by_id_.end() || id_at(*found) != id ? nullptr : &tokens_[*found];
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  auto found = std::ranges::find(tokens_, content, &AddedToken::content);
  return found == tokens_.end() ? nullptr : &*found;
}

void AddedTokens::split(std::string_view text, bool normalized, std::vector<Part>& parts) const {
  const Searcher& searcher = normalized ? normalized_ : raw_;
  std::size_t done = 0;
  for (std::size_t at = 0; searcher.any && at < text.size();) {
    if (!searcher.starts[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    std::int32_t node = ByteTrie::root(), best = ByteTrie::kNone;
    std::size_t stop = at;
    for (std::size_t end = at; end < text.size();) {
      node = searcher.trie.step(node, static_cast<unsigned char>(text[end++]));
      if (node == ByteTrie::kNone) break;
      if (searcher.trie.value(node) == ByteTrie::kNone) continue;
      best = searcher.trie.value(node);
      stop = end;
    }
    if (best == ByteTrie::kNone) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(best)];
    std::size_t start = at;
    at = stop;  // even if the token is rejected below
    if (token.single_word &&
        (ends_with_word(text.substr(0, start)) || starts_with_word(text.substr(stop)))) {
      continue;
    }
    if (token.strip_left) start = std::max(end_spaces(text.substr(0, start)), done);
    if (token.strip_right) stop += start_spaces(text.substr(stop));
    if (done < start) parts.push_back({text.substr(done, start - done), nullptr, done});
    parts.push_back({text.substr(start, stop - start), &token, start});
    done = stop;
  }
  if (done < text.size()) parts.push_back({text.substr(done), nullptr, done});
}

}  // namespace bev
