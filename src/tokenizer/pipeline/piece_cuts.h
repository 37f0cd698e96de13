// Splitting and rewriting of text pieces, the building blocks of pre-tokenizers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/text/utf8.h"

namespace bev {

// Consecutive pieces of text in one buffer.
struct Pieces {
  struct Piece {
    std::size_t begin, end;
    std::size_t origin;  // leading bytes that stem from the first character of the original text
  };
  std::string text;
  std::vector<Piece> pieces;

  std::string_view operator[](std::size_t i) const {
    return std::string_view(text).substr(pieces[i].begin, pieces[i].end - pieces[i].begin);
  }
};

// Range of a piece, and whether the pattern matched it.
struct Stretch {
  std::size_t begin, end;
  bool matched;
};

// What happens to the matches (Hugging Face's SplitDelimiterBehavior).
enum class Behavior : std::uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous
};

void apply_behavior(std::vector<Stretch>& stretches, Behavior behavior);

// Splits each piece at the stretches of find(text, stretches); offsets are relative to the piece.
template <class Find>
void cut(Pieces& pieces, Behavior behavior, Find find) {
  std::vector<Pieces::Piece> out;
  std::vector<Stretch> stretches;
  out.reserve(pieces.pieces.size());
  for (std::size_t i = 0; i < pieces.pieces.size(); ++i) {
    stretches.clear();
    find(pieces[i], stretches);
    apply_behavior(stretches, behavior);
    std::size_t base = pieces.pieces[i].begin, origin = pieces.pieces[i].origin;
    for (const Stretch& stretch : stretches) {
      if (stretch.begin == stretch.end) continue;
      std::size_t left = origin - std::min(origin, stretch.begin);
      out.push_back(
          {base + stretch.begin, base + stretch.end, std::min(left, stretch.end - stretch.begin)});
    }
  }
  pieces.pieces = std::move(out);
}

// Splits by a predicate on single characters.
template <class Predicate>
void cut_characters(Pieces& pieces, Behavior behavior, Predicate matches) {
  cut(pieces, behavior, [&](std::string_view text, std::vector<Stretch>& out) {
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size();) {
      DecodedPoint next = decode_point(text, at);
      if (matches(next.point)) {
        if (done < at) out.push_back({done, at, false});
        done = at + next.bytes;
        out.push_back({at, done, true});
      }
      at += next.bytes;
    }
    if (done < text.size()) out.push_back({done, text.size(), false});
  });
}

// Rewrites every piece: prefix(piece) is put before it, and write(text, out) appends its text.
template <class Prefix, class Write>
void rewrite(Pieces& pieces, Prefix prefix, Write write) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.pieces.size());
  for (std::size_t i = 0; i < pieces.pieces.size(); ++i) {
    Pieces::Piece& piece = pieces.pieces[i];
    std::string_view old = pieces[i];
    std::size_t begin = text.size();
    text.append(prefix(old, piece.origin > 0));
    write(old.substr(0, piece.origin), text);
    std::size_t origin = piece.origin > 0 ? text.size() - begin : 0;
    write(old.substr(piece.origin), text);
    piece = {begin, text.size(), origin};
  }
  pieces.text = std::move(text);
}

}  // namespace bev
