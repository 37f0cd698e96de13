// Word counts: a hash table for millions of short words, fewer than 2^32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

std::uint64_t hash_word(std::string_view word);

class WordTable {
 public:
  // `hash` must be hash_word(word).
  void add(std::string_view word, std::uint64_t hash, std::int64_t count);
  void add(const WordTable& other);
  // Removes words with a smaller count.
  void keep_from(std::int64_t least);
  void clear();

  std::size_t size() const { return entries_.size(); }
  std::size_t text_bytes() const { return text_.size(); }  // total length of all words

  // Calls visit(word, count) in insertion order.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Entry& entry : entries_) visit(word_of(entry), entry.count);
  }

 private:
  struct Entry {
    std::uint64_t hash;
    std::uint64_t begin;  // offset in text_
    std::int64_t count;
    std::uint32_t bytes;
  };
  std::string_view word_of(const Entry& entry) const {
    return std::string_view(text_).substr(entry.begin, entry.bytes);
  }
  void index_anew(std::size_t slots);

  std::string text_;  // concatenated words
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> slots_;  // index into entries_ plus one; 0: free
};

}  // namespace bev
