#include "tokenizer/models/word_table.h"

#include <cstring>
#include <utility>

namespace bev {

std::uint64_t hash_word(std::string_view word) {
  auto mix = [](std::uint64_t value) {
    value *= 0x9e3779b97f4a7c15u;
    return value ^ value >> 29;
  };
  std::uint64_t hash = mix(word.size());
  for (; word.size() >= sizeof(std::uint64_t); word.remove_prefix(sizeof(std::uint64_t))) {
    std::uint64_t part;
    std::memcpy(&part, word.data(), sizeof part);
    hash = mix(hash ^ part);
  }
  std::uint64_t rest = 0;
  std::memcpy(&rest, word.data(), word.size());
  hash = mix(hash ^ rest) * 0xbf58476d1ce4e5b9u;
  return hash ^ hash >> 32;
}

void WordTable::add(std::string_view word, std::uint64_t hash, std::int64_t count) {
  constexpr std::size_t kFirstSlots = 64;
  if (entries_.size() * 2 >= slots_.size()) {
    index_anew(slots_.empty() ? kFirstSlots : slots_.size() * 2);
  }
  std::size_t at = hash & (slots_.size() - 1);
  for (; slots_[at] != 0; at = (at + 1) & (slots_.size() - 1)) {
    Entry& entry = entries_[slots_[at] - 1];
    if (entry.hash == hash && word_of(entry) == word) {
      entry.count += count;
      return;
    }
  }
  entries_.push_back({hash, text_.size(), count, static_cast<std::uint32_t>(word.size())});
  text_.append(word);
  slots_[at] = static_cast<std::uint32_t>(entries_.size());
}

void WordTable::add(const WordTable& other) {
  for (const Entry& entry : other.entries_) add(other.word_of(entry), entry.hash, entry.count);
}

void WordTable::index_anew(std::size_t slots) {
  slots_.assign(slots, 0);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::size_t at = entries_[i].hash & (slots - 1);
    while (slots_[at] != 0) at = (at + 1) & (slots - 1);
    slots_[at] = static_cast<std::uint32_t>(i + 1);
  }
}

void WordTable::keep_from(std::int64_t least) {
  WordTable kept;
  for (const Entry& entry : entries_) {
    if (entry.count >= least) kept.add(word_of(entry), entry.hash, entry.count);
  }
  *this = std::move(kept);
}

void WordTable::clear() {
  text_.clear();
  entries_.clear();
  slots_.assign(slots_.size(), 0);
}

}  // namespace bev
