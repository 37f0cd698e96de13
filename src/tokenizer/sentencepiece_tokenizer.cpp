#include "tokenizer/sentencepiece_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/json_check.h"
#include "tokenizer/models/unigram_path.h"
#include "tokenizer/pipeline/decoder.h"
#include "tokenizer/text/utf8.h"

namespace bev {

namespace {

constexpr std::string_view kSpaceSymbol = "\xe2\x96\x81";

bool is_text_piece(PieceType type) {
  return type == PieceType::kNormal || type == PieceType::kUserDefined ||
         type == PieceType::kUnused;
}

std::optional<unsigned char> byte_of(std::string_view piece) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (piece == fmt::format("<0x{:02X}>", byte)) return static_cast<unsigned char>(byte);
  }
  return std::nullopt;
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceFile file,
                                               SentencePieceSpecials specials,
                                               const std::string& source)
    : file_(std::move(file)), specials_(specials) {
  constexpr float kUnknownPenalty = 10.0f;
  float least = std::numeric_limits<float>::max();
  byte_ids_.fill(-1);
  for (std::size_t i = 0; i < file_.pieces.size(); ++i) {
    const SentencePiece& entry = file_.pieces[i];
    auto id = static_cast<std::int32_t>(i);
    Vocabulary& vocabulary = is_text_piece(entry.type) ? pieces_ : reserved_;
    BEV_CHECK(!vocabulary.find(entry.text), ErrorKind::kInput, source, ": the piece ",
              quote(entry.text), " is there twice");
    vocabulary.add(entry.text, id, source);
    if (is_text_piece(entry.type)) trie_.add(entry.text, id);
    if (entry.type == PieceType::kNormal) least = std::min(least, entry.score);
    if (entry.type == PieceType::kUserDefined) {
      symbols_.add(entry.text, id);
      has_symbols_ = true;
    }
    if (entry.type == PieceType::kUnknown) {
      BEV_CHECK(unknown_ < 0, ErrorKind::kInput, source, ": two unknown pieces");
      unknown_ = id;
    }
    if (entry.type == PieceType::kByte) {
      std::optional<unsigned char> byte = byte_of(entry.text);
      BEV_CHECK(byte.has_value(), ErrorKind::kInput, source, ": the byte piece ", quote(entry.text),
                " is no byte");
      byte_ids_[*byte] = id;
    }
  }
  BEV_CHECK(unknown_ >= 0, ErrorKind::kInput, source, ": no unknown piece");
  BEV_CHECK(!file_.byte_fallback || std::ranges::find(byte_ids_, -1) == byte_ids_.end(),
            ErrorKind::kInput, source, ": byte pieces are missing");
  unknown_score_ = least - kUnknownPenalty;
  begin_ = control_id(file_.begin_piece);
  end_ = control_id(file_.end_piece);
}

std::optional<std::int32_t> SentencePieceTokenizer::control_id(std::string_view text) const {
  std::optional<std::int32_t> id = reserved_.find(text);
  if (!id || piece(*id).type != PieceType::kControl) return std::nullopt;
  return id;
}

std::size_t SentencePieceTokenizer::symbol_bytes(std::string_view text) const {
  if (!has_symbols_) return 0;
  std::size_t longest = 0;
  std::int32_t node = ByteTrie::root();
  for (std::size_t end = 0; end < text.size();) {
    node = symbols_.step(node, static_cast<unsigned char>(text[end++]));
    if (node == ByteTrie::kNone) break;
    if (symbols_.value(node) != ByteTrie::kNone) longest = end;
  }
  return longest;
}

std::pair<std::string_view, std::size_t> SentencePieceTokenizer::normalize_prefix(
    std::string_view text, const SentencePieceRules& rules, bool match_symbols) const {
  if (match_symbols) {
    if (std::size_t bytes = symbol_bytes(text)) return {text.substr(0, bytes), bytes};
  }
  if (std::optional<Charsmap::Rule> rule = rules.map.longest(text)) {
    return {rule->replacement, rule->bytes};
  }
  std::string_view character = text.substr(0, point_bytes(text[0]));
  return {character, character.size()};
}

std::string SentencePieceTokenizer::normalize(std::string_view text,
                                              const SentencePieceRules& rules,
                                              bool match_symbols) const {
  std::string out;
  const bool trim = rules.remove_extra_whitespaces;
  while (trim && !text.empty()) {
    auto [prefix, bytes] = normalize_prefix(text, rules, match_symbols);
    if (prefix != " ") break;
    text.remove_prefix(bytes);
  }
  if (text.empty()) return out;
  out.reserve(text.size() + text.size() / 2);
  const std::string_view space = rules.escape_whitespaces ? kSpaceSymbol : " ";
  if (!file_.whitespace_as_suffix && rules.add_dummy_prefix) out.append(space);
  bool after_space = trim;
  while (!text.empty()) {
    auto [prefix, bytes] = normalize_prefix(text, rules, match_symbols);
    while (after_space && prefix.starts_with(' ')) prefix.remove_prefix(1);
    if (!prefix.empty()) {
      for (char c : prefix) c == ' ' ? out.append(space) : out.append(1, c);
      after_space = prefix.ends_with(' ');
    }
    text.remove_prefix(bytes);
    after_space = after_space && trim;
  }
  std::string_view kept = out;
  while (trim && kept.ends_with(space)) kept.remove_suffix(space.size());
  out.erase(kept.size());
  if (file_.whitespace_as_suffix && rules.add_dummy_prefix) out.append(space);
  return out;
}

std::vector<SentencePieceTokenizer::Piece> SentencePieceTokenizer::cut_unigram(
    std::string_view text) const {
  std::vector<PathNode<float>> nodes;
  auto score_of = [&](std::int32_t id, std::size_t bytes) -> std::optional<float> {
    const SentencePiece& entry = piece(id);
    if (entry.type == PieceType::kUnused) return std::nullopt;
    // A user-defined symbol always wins.
    if (entry.type == PieceType::kUserDefined) {
      return static_cast<float>(0.1 * static_cast<double>(bytes - 1));
    }
    return entry.score;
  };
  find_best_path<float>(text, trie_, {unknown_, unknown_score_}, score_of, nodes);
  std::vector<Piece> pieces;
  for (std::size_t end = text.size(); end > 0;) {
    const PathNode<float>& node = nodes[end];
    auto begin = static_cast<std::size_t>(node.begin);
    pieces.push_back({text.substr(begin, end - begin), node.id});
    end = begin;
  }
  std::ranges::reverse(pieces);
  return pieces;
}

std::vector<std::int32_t> SentencePieceTokenizer::encode(std::string_view text) const {
  std::string replaced;
  if (!is_valid_utf8(text)) {
    replaced = to_valid_utf8(text);
    text = replaced;
  }
  const std::string normalized = normalize(text, file_.normalizer, true);
  const std::vector<Piece> pieces = file_.unigram ? cut_unigram(normalized) : cut_bpe(normalized);
  std::vector<std::int32_t> ids;
  ids.reserve(pieces.size());
  bool after_unknown = false;
  for (const Piece& part : pieces) {
    bool unknown = part.id == unknown_;
    if (unknown && file_.byte_fallback) {
      for (char byte : part.text) ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
    } else if (!unknown || !after_unknown) {  // adjacent unknown pieces are fused
      ids.push_back(part.id);
    }
    after_unknown = unknown;
  }
  return ids;
}

void SentencePieceTokenizer::add_special_tokens(std::vector<std::int32_t>& ids) const {
  if (specials_.begin && begin_) ids.insert(ids.begin(), *begin_);
  if (specials_.end && end_) ids.push_back(*end_);
}

namespace {

// Appends the bytes of byte-fallback pieces; an invalid byte becomes U+FFFD.
void append_bytes(std::string& out, std::string& bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    Utf8Stretch stretch = first_utf8_stretch(std::string_view(bytes).substr(at));
    if (stretch.valid) {
      out.append(bytes, at, stretch.bytes);
      at += stretch.bytes;
    } else {
      out.append(kReplacementCharacter);
      ++at;
    }
  }
  bytes.clear();
}

}  // namespace

std::string SentencePieceTokenizer::decode(std::span<const std::int32_t> ids) const {
  const SentencePieceRules& rules = file_.normalizer;
  std::string out, bytes;
  bool at_start = true;  // a leading space symbol is the dummy prefix
  for (std::int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) continue;
    const SentencePiece& entry = piece(id);
    if (entry.type == PieceType::kByte) {
      bytes.push_back(static_cast<char>(std::ranges::find(byte_ids_, id) - byte_ids_.begin()));
      continue;
    }
    append_bytes(out, bytes);
    at_start = at_start && out.empty();
    if (entry.type == PieceType::kControl) continue;
    std::string_view text = entry.text;
    bool dropped = false;
    if (at_start && (rules.add_dummy_prefix || rules.remove_extra_whitespaces) &&
        text.starts_with(kSpaceSymbol)) {
      text.remove_prefix(kSpaceSymbol.size());
      dropped = !rules.remove_extra_whitespaces;
    }
    out.append(entry.type == PieceType::kUnknown ? file_.unknown_surface
                                                 : replace_all(text, kSpaceSymbol, " "));
    at_start = at_start && !dropped && out.empty();
  }
  append_bytes(out, bytes);
  return file_.denormalizer.map.empty() ? out : normalize(out, file_.denormalizer, false);
}

std::optional<std::int32_t> SentencePieceTokenizer::token_id(std::string_view token) const {
  std::optional<std::int32_t> id = reserved_.find(token);
  return id ? id : pieces_.find(token);
}

std::optional<std::string> SentencePieceTokenizer::token_text(std::int32_t id) const {
  if (id < 0 || id >= vocab_size()) return std::nullopt;
  return piece(id).text;
}

bool SentencePieceTokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && piece(id).type == PieceType::kControl;
}

}  // namespace bev
