#include "tokenizer/models/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json_check.h"
#include "tokenizer/text/utf8.h"

namespace bev {

namespace {

// Up to this many symbols, every merge scans the whole word for the best pair; longer words use a
// heap.
constexpr std::size_t kShortWord = 24;
constexpr std::uint32_t kNoMerge = ~std::uint32_t{0};

struct Symbol {
  std::int32_t id;
  std::int32_t previous, next;  // -1: none
  bool gone;
};

struct Candidate {
  std::uint32_t rank;
  std::int32_t position;
  std::int32_t id;

  // The top of the heap is the lowest rank, then the leftmost position.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

}  // namespace

struct BpeModel::Memory : ModelMemory {
  std::vector<std::int32_t> ids;     // symbols of the word
  std::vector<std::uint32_t> ranks;  // rank of the pair that each symbol starts
  std::vector<std::int32_t> merged;  // id that the pair merges into
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::string text;
  bool unknown_waits = false;
};

BpeModel::BpeModel(Vocabulary vocabulary, Vocabulary keys, const std::vector<TextPair>& merges,
                   BpeOptions options, std::string_view source)
    : WordModel(std::move(vocabulary)),
      keys_(std::move(keys)),
      options_(std::move(options)),
      merges_(merges.size()) {
  auto need = [&](std::string_view token) {
    std::optional<std::int32_t> id = vocabulary_.find(token);
    BEV_CHECK(id.has_value(), ErrorKind::kInput, source, ": the merge token ", quote(token),
              " is not in the vocabulary");
    return *id;
  };
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    std::int32_t left_id = need(left), right_id = need(right);
    BEV_CHECK(right.size() >= options_.continuing_prefix.size(), ErrorKind::kInput, source,
              ": the merge token ", quote(right), " is shorter than the prefix");
    std::int32_t id = need(left + right.substr(options_.continuing_prefix.size()));
    merges_.set(left_id, right_id, {static_cast<std::uint32_t>(rank), id});
  }
  find_units();
}

namespace {

// Calls visit(left, right, id) for every way to split a token into two others.
template <class Visit>
void for_each_pair(const Vocabulary& keys, Visit visit) {
  for (std::int32_t id = 0; id < keys.end_id(); ++id) {
    const std::string* token = keys.text(id);
    if (token == nullptr) continue;
    std::string_view text = *token;
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      std::optional<std::int32_t> left = keys.find(text.substr(0, cut));
      if (!left) continue;
      std::optional<std::int32_t> right = keys.find(text.substr(cut));
      if (right) visit(*left, *right, id);
    }
  }
}

std::size_t count_pairs(const Vocabulary& keys) {
  std::size_t count = 0;
  for_each_pair(keys, [&](std::int32_t, std::int32_t, std::int32_t) { ++count; });
  return count;
}

}  // namespace

BpeModel::BpeModel(Vocabulary vocabulary, Vocabulary keys, BpeOptions options)
    : WordModel(std::move(vocabulary)),
      keys_(std::move(keys)),
      options_(std::move(options)),
      merges_(count_pairs(keys_)) {
  for_each_pair(keys_, [&](std::int32_t left, std::int32_t right, std::int32_t id) {
    merges_.set(left, right, {static_cast<std::uint32_t>(id), id});
  });
  find_units();
}

void BpeModel::find_units() {
  plain_ = options_.continuing_prefix.empty() && options_.end_suffix.empty();
  byte_ids_.fill(-1);
  fallback_ids_.fill(-1);
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (byte < 0x80 || options_.bytes) {
      char unit = static_cast<char>(byte);
      byte_ids_[byte] = keys_.find({&unit, 1}).value_or(-1);
    }
    if (options_.byte_fallback) {
      fallback_ids_[byte] = keys_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
      fallback_ = fallback_ || fallback_ids_[byte] >= 0;
    }
  }
  if (options_.unknown) unknown_id_ = vocabulary_.find(*options_.unknown);
}

std::unique_ptr<ModelMemory> BpeModel::make_memory() const { return std::make_unique<Memory>(); }

// Emits byte-fallback tokens if all bytes have one; otherwise the unknown token, which is held back
// so that the next unknown unit can be fused with it.
void BpeModel::add_unknown(std::string_view unit, Memory& memory) const {
  if (fallback_ && std::ranges::all_of(unit, [&](char byte) {
        return fallback_ids_[static_cast<unsigned char>(byte)] >= 0;
      })) {
    for (char byte : unit) memory.ids.push_back(fallback_ids_[static_cast<unsigned char>(byte)]);
    return;
  }
  if (!options_.unknown) return;
  BEV_CHECK(unknown_id_.has_value(), ErrorKind::kInput, "the unknown token ",
            quote(*options_.unknown), " is not in the vocabulary");
  if (memory.unknown_waits && !options_.fuse_unknown) memory.ids.push_back(*unknown_id_);
  memory.unknown_waits = true;
}

void BpeModel::split(std::string_view word, Memory& memory) const {
  memory.ids.clear();
  memory.unknown_waits = false;
  for (std::size_t at = 0; at < word.size();) {
    std::size_t bytes = options_.bytes ? 1 : point_bytes(word[at]);
    std::string_view unit = word.substr(at, bytes);
    std::int32_t id = -1;
    if (plain_ && bytes == 1) {
      id = byte_ids_[static_cast<unsigned char>(unit[0])];
    } else {
      if (!plain_) {
        memory.text.assign(at == 0 ? "" : options_.continuing_prefix).append(unit);
        if (at + bytes == word.size()) memory.text.append(options_.end_suffix);
        unit = memory.text;
      }
      id = keys_.find(unit).value_or(-1);
    }
    at += bytes;
    if (id < 0) {
      add_unknown(unit, memory);
      continue;
    }
    if (memory.unknown_waits) memory.ids.push_back(*unknown_id_);
    memory.unknown_waits = false;
    memory.ids.push_back(id);
  }
  if (memory.unknown_waits) memory.ids.push_back(*unknown_id_);
}

void BpeModel::merge_short(Memory& memory) const {
  std::vector<std::int32_t>& ids = memory.ids;
  std::size_t count = ids.size();
  memory.ranks.resize(count);
  memory.merged.resize(count);
  auto look = [&](std::size_t i) {
    const PairMerge* merge = i + 1 < count ? merges_.find(ids[i], ids[i + 1]) : nullptr;
    memory.ranks[i] = merge ? merge->rank : kNoMerge;
    memory.merged[i] = merge ? merge->id : 0;
  };
  for (std::size_t i = 0; i < count; ++i) look(i);
  while (count > 1) {
    auto begin = memory.ranks.begin();
    auto best = std::min_element(begin, begin + static_cast<std::ptrdiff_t>(count));
    if (*best == kNoMerge) break;
    auto at = static_cast<std::size_t>(best - begin);
    ids[at] = memory.merged[at];
    for (std::size_t i = at + 1; i + 1 < count; ++i) {
      ids[i] = ids[i + 1];
      memory.ranks[i] = memory.ranks[i + 1];
      memory.merged[i] = memory.merged[i + 1];
    }
    --count;
    look(at);
    if (at > 0) look(at - 1);
  }
  ids.resize(count);
}

void BpeModel::merge_long(Memory& memory) const {
  std::vector<Symbol>& symbols = memory.symbols;
  std::vector<Candidate>& heap = memory.heap;
  auto count = static_cast<std::int32_t>(memory.ids.size());
  symbols.clear();
  heap.clear();
  for (std::int32_t i = 0; i < count; ++i) {
    symbols.push_back(
        {memory.ids[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1, false});
  }
  auto symbol = [&](std::int32_t i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };
  auto merge_at = [&](std::int32_t i) -> const PairMerge* {
    if (i < 0 || symbol(i).gone || symbol(i).next < 0) return nullptr;
    return merges_.find(symbol(i).id, symbol(symbol(i).next).id);
  };
  auto offer = [&](std::int32_t i) {
    const PairMerge* merge = merge_at(i);
    if (merge == nullptr) return false;
    heap.push_back({merge->rank, i, merge->id});
    return true;
  };
  for (std::int32_t i = 0; i < count; ++i) offer(i);
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    Candidate best = heap.back();
    heap.pop_back();
    const PairMerge* merge = merge_at(best.position);
    if (merge == nullptr || merge->id != best.id) continue;  // stale: a symbol has merged
    Symbol& left = symbol(best.position);
    Symbol& right = symbol(left.next);
    left.id = best.id;
    right.gone = true;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).previous = best.position;
    if (offer(left.previous)) std::push_heap(heap.begin(), heap.end());
    if (offer(best.position)) std::push_heap(heap.begin(), heap.end());
  }
  memory.ids.clear();
  for (std::int32_t i = count > 0 ? 0 : -1; i >= 0; i = symbol(i).next) {
    memory.ids.push_back(symbol(i).id);
  }
}

void BpeModel::encode(std::string_view word, ModelMemory& memory,
                      std::vector<std::int32_t>& ids) const {
  if (word.empty()) return;
  if (options_.whole_words) {
    if (std::optional<std::int32_t> id = keys_.find(word)) {
      ids.push_back(*id);
      return;
    }
  }
  auto& own = static_cast<Memory&>(memory);
  split(word, own);
  if (own.ids.size() <= kShortWord) {
    merge_short(own);
  } else {
    merge_long(own);
  }
  ids.insert(ids.end(), own.ids.begin(), own.ids.end());
}

}  // namespace bev
