// Viterbi search over bytes for the most likely segmentation of a text (SentencePiece unigram).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tokenizer/models/byte_trie.h"
#include "tokenizer/text/utf8.h"

namespace bev {

// Best path to a position of the text: its last piece.
template <class Score>
struct PathNode {
  std::int32_t id = 0;
  std::int32_t begin = -1;  // start of the piece; -1: no path ends here
  Score score = 0;
};

template <class Score>
struct UnknownPiece {
  std::int32_t id;  // id of a character that has no piece
  Score score;
};

// Fills nodes[0..text.size()] for valid UTF-8. score_of(id, bytes) returns a piece's score, or
// nullopt if it must not be used. In float, large scores are rebased to keep precision, as
// SentencePiece does; only differences matter.
template <class Score, class ScoreOf>
void find_best_path(std::string_view text, const ByteTrie& trie, UnknownPiece<Score> unknown,
                    ScoreOf score_of, std::vector<PathNode<Score>>& nodes) {
  constexpr Score kLarge = 100000;
  nodes.assign(text.size() + 1, {});
  std::size_t furthest = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    if constexpr (std::is_same_v<Score, float>) {
      Score offset = nodes[begin].score;
      if (offset < -kLarge || offset > kLarge) {
        for (std::size_t i = begin; i <= furthest; ++i) {
          if (i == begin || nodes[i].begin >= 0) nodes[i].score -= offset;
        }
      }
    }
    const Score so_far = nodes[begin].score;
    auto offer = [&](std::size_t end, std::int32_t id, Score score) {
      furthest = std::max(furthest, end);
      PathNode<Score>& node = nodes[end];
      Score candidate = score + so_far;
      if (node.begin >= 0 && !(candidate > node.score)) return;
      node = {id, static_cast<std::int32_t>(begin), candidate};
    };
    const std::size_t character =
        std::min<std::size_t>(point_bytes(text[begin]), text.size() - begin);
    bool known = false;
    std::int32_t node = ByteTrie::root();
    for (std::size_t end = begin; end < text.size();) {
      node = trie.step(node, static_cast<unsigned char>(text[end++]));
      if (node == ByteTrie::kNone) break;
      if (trie.value(node) == ByteTrie::kNone) continue;
      std::optional<Score> score = score_of(trie.value(node), end - begin);
      if (!score) continue;
      offer(end, trie.value(node), *score);
      known = known || end - begin == character;
    }
    if (!known) offer(begin + character, unknown.id, unknown.score);
    begin += character;
  }
}

}  // namespace bev
