// Cache of encoded words. Words repeat, so most are found here and never reach the model.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace bev {

// Two-way set associative, one cache line per entry; the older entry is replaced. Long words and
// words with many ids are not cached. Not thread safe.
class WordCache {
 public:
  static constexpr std::size_t kMostBytes = 24;
  static constexpr std::size_t kMostIds = 8;

  struct Key {
    std::array<std::uint64_t, 3> words{};
    std::uint64_t hash = 0;
  };

  // The word must be non-empty and at most kMostBytes long. `readable` is the number of bytes that
  // may be read from its start, including those after the word.
  static Key key_of(std::string_view word, std::size_t readable) {
    Key key;
    if (readable >= kMostBytes) {
      std::memcpy(key.words.data(), word.data(), kMostBytes);
      mask(key.words, word.size());
    } else {
      std::memcpy(key.words.data(), word.data(), word.size());
    }
    // The length distinguishes words that end in zero bytes.
    std::uint64_t mixed = (key.words[0] ^ word.size()) * 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 29 ^ key.words[1]) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 32 ^ key.words[2]) * 0x94d049bb133111ebu;
    key.hash = mixed ^ mixed >> 31;
    return key;
  }

  // Prefetches the entries for a later find().
  void prefetch(const Key& key) const {
    if (!entries_.empty()) __builtin_prefetch(&entries_[slot(key.hash)]);
  }

  // Ids of a cached word; otherwise an empty span.
  std::span<const std::int32_t> find(const Key& key, std::size_t bytes) const {
    if (entries_.empty()) return {};
    const Entry* pair = &entries_[slot(key.hash)];
    if (pair[0].is(key, bytes)) return {pair[0].ids.data(), pair[0].count};
    if (pair[1].is(key, bytes)) return {pair[1].ids.data(), pair[1].count};
    return {};
  }

  void keep(const Key& key, std::size_t bytes, std::span<const std::int32_t> ids) {
    if (ids.empty() || ids.size() > kMostIds) return;
    if (entries_.empty()) entries_.resize(kEntries);
    Entry* pair = &entries_[slot(key.hash)];
    pair[1] = pair[0];
    pair[0].words = key.words;
    pair[0].bytes = static_cast<std::uint16_t>(bytes);
    pair[0].count = static_cast<std::uint16_t>(ids.size());
    std::memcpy(pair[0].ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  static constexpr std::size_t kEntries = std::size_t{1} << 17;

  struct alignas(64) Entry {
    std::array<std::uint64_t, 3> words{};
    std::array<std::int32_t, kMostIds> ids;
    std::uint16_t bytes = 0;  // 0: free
    std::uint16_t count = 0;

    bool is(const Key& key, std::size_t size) const { return bytes == size && words == key.words; }
  };
  static_assert(sizeof(Entry) == 64);

  // Clears the bytes after the word.
  static void mask(std::array<std::uint64_t, 3>& words, std::size_t bytes) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      std::size_t used = bytes > i * 8 ? bytes - i * 8 : 0;
      if (used < 8) words[i] &= used == 0 ? 0 : ~std::uint64_t{0} >> (64 - used * 8);
    }
  }
  static std::size_t slot(std::uint64_t hash) { return hash & (kEntries - 2); }

  std::vector<Entry> entries_;
};

}  // namespace bev
