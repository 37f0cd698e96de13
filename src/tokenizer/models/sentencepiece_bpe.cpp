// SentencePiece BPE: merges the adjacent pair that forms the piece with the best score, leftmost
// first.
#include <algorithm>
#include <unordered_map>

#include "tokenizer/sentencepiece_tokenizer.h"
#include "tokenizer/text/utf8.h"

namespace bev {

namespace {

constexpr int kMaxDepth = 100;  // recursion limit for splitting unused pieces

struct Symbol {
  std::string_view text;  // empty: merged into the previous one
  std::int32_t previous, next;
  bool frozen;  // user-defined symbol, which is never merged
};

struct Candidate {
  float score;
  std::int32_t left, right;
  std::size_t bytes;

  // The top of the heap is the best score, then the leftmost.
  bool operator<(const Candidate& other) const {
    return score != other.score ? score < other.score : left > other.left;
  }
};

}  // namespace

struct SentencePieceTokenizer::Merging {
  const SentencePieceTokenizer& model;
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  // The two parts of each merged piece that is unused and must be split again.
  std::unordered_map<std::string_view, std::pair<std::string_view, std::string_view>> parts;

  Symbol& symbol(std::int32_t i) { return symbols[static_cast<std::size_t>(i)]; }

  void split(std::string_view text) {
    while (!text.empty()) {
      std::size_t own = model.symbol_bytes(text);
      std::size_t bytes = own ? own : std::min<std::size_t>(point_bytes(text[0]), text.size());
      auto index = static_cast<std::int32_t>(symbols.size());
      symbols.push_back({text.substr(0, bytes), index - 1, index + 1, own != 0});
      text.remove_prefix(bytes);
    }
    if (!symbols.empty()) symbols.back().next = -1;
  }

  bool offer(std::int32_t left, std::int32_t right) {
    if (left < 0 || right < 0 || symbol(left).frozen || symbol(right).frozen) return false;
    std::string_view whole(symbol(left).text.data(),
                           symbol(left).text.size() + symbol(right).text.size());
    std::optional<std::int32_t> id = model.pieces_.find(whole);
    if (!id) return false;
    heap.push_back({model.piece(*id).score, left, right, whole.size()});
    if (model.piece(*id).type == PieceType::kUnused) {
      parts[whole] = {symbol(left).text, symbol(right).text};
    }
    return true;
  }

  void merge_all() {
    auto count = static_cast<std::int32_t>(symbols.size());
    for (std::int32_t i = 0; i + 1 < count; ++i) offer(i, i + 1);
    std::make_heap(heap.begin(), heap.end());
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end());
      Candidate best = heap.back();
      heap.pop_back();
      Symbol& left = symbol(best.left);
      Symbol& right = symbol(best.right);
      if (left.text.empty() || right.text.empty() ||
          left.text.size() + right.text.size() != best.bytes) {
        continue;  // stale: its symbols have merged otherwise
      }
      left.text = {left.text.data(), best.bytes};
      right.text = {};
      left.next = right.next;
      if (left.next >= 0) symbol(left.next).previous = best.left;
      if (offer(left.previous, best.left)) std::push_heap(heap.begin(), heap.end());
      if (offer(best.left, left.next)) std::push_heap(heap.begin(), heap.end());
    }
  }

  void add(std::string_view text, int depth, std::vector<Piece>& out) const {
    std::int32_t id = model.pieces_.find(text).value_or(model.unknown_);
    auto found = parts.find(text);
    if (model.piece(id).type != PieceType::kUnused || found == parts.end() || depth > kMaxDepth) {
      out.push_back({text, id});
      return;
    }
    add(found->second.first, depth + 1, out);
    add(found->second.second, depth + 1, out);
  }
};

std::vector<SentencePieceTokenizer::Piece> SentencePieceTokenizer::cut_bpe(
    std::string_view text) const {
  Merging merging{*this, {}, {}, {}};
  merging.split(text);
  merging.merge_all();
  std::vector<Piece> out;
  for (std::int32_t i = merging.symbols.empty() ? -1 : 0; i >= 0; i = merging.symbol(i).next) {
    merging.add(merging.symbol(i).text, 0, out);
  }
  return out;
}

}  // namespace bev
