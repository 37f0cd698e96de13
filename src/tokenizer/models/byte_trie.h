// Trie over bytes: finds all stored texts that are prefixes of a given text.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace bev {

// Edges are in one hash table keyed by node and byte; a node's value is kNone if no text ends
// there.
class ByteTrie {
 public:
  static constexpr std::int32_t kNone = -1;

  ByteTrie() : slots_(16) { root_.fill(kNone); }

  // A text that is already stored keeps its first value.
  void add(std::string_view text, std::int32_t value) {
    std::int32_t node = 0;
    for (char byte : text) node = grow(node, static_cast<unsigned char>(byte));
    if (values_[static_cast<std::size_t>(node)] == kNone) {
      values_[static_cast<std::size_t>(node)] = value;
    }
  }

  static constexpr std::int32_t root() { return 0; }
  // Child of a node, or kNone.
  std::int32_t step(std::int32_t node, unsigned char byte) const {
    return node == 0 ? root_[byte] : slots_[place(key_of(node, byte))].node;
  }
  std::int32_t value(std::int32_t node) const { return values_[static_cast<std::size_t>(node)]; }

 private:
  struct Slot {
    std::uint64_t key = 0;  // 0: free; the root's edges are stored separately
    std::int32_t node = kNone;
  };
  static std::uint64_t key_of(std::int32_t node, unsigned char byte) {
    return static_cast<std::uint64_t>(node) << 8 | byte;
  }
  std::size_t place(std::uint64_t key) const {
    int shift = 64 - std::countr_zero(slots_.size());
    std::size_t at = static_cast<std::size_t>(key * 0x9e3779b97f4a7c15u >> shift);
    while (slots_[at].key != 0 && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  std::int32_t grow(std::int32_t node, unsigned char byte) {
    std::int32_t next = step(node, byte);
    if (next != kNone) return next;
    next = static_cast<std::int32_t>(values_.size());
    values_.push_back(kNone);
    if (node == 0) {
      root_[byte] = next;
      return next;
    }
    if (values_.size() * 2 > slots_.size()) {
      std::vector<Slot> old(slots_.size() * 2);
      old.swap(slots_);
      for (const Slot& slot : old) {
        if (slot.key != 0) slots_[place(slot.key)] = slot;
      }
    }
    slots_[place(key_of(node, byte))] = {key_of(node, byte), next};
    return next;
  }

  std::array<std::int32_t, 256> root_;
  std::vector<Slot> slots_;
  std::vector<std::int32_t> values_{kNone};
};

}  // namespace bev
