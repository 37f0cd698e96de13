// BPE merge table: pair of tokens to merge rank and merged token.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bev {

struct PairMerge {
  std::uint32_t rank;
  std::int32_t id;
};

// Open addressing with a load factor of at most one half.
class PairTable {
 public:
  explicit PairTable(std::size_t pairs) : slots_(std::bit_ceil(pairs * 2 + 2)) {
    shift_ = 64 - std::countr_zero(slots_.size());
  }

  // Replaces the merge of a pair that is already present.
  void set(std::int32_t left, std::int32_t right, PairMerge merge) {
    slots_[place(key_of(left, right))] = {key_of(left, right), merge};
  }
  const PairMerge* find(std::int32_t left, std::int32_t right) const {
    std::uint64_t key = key_of(left, right);
    const Slot& slot = slots_[place(key)];
    return slot.key == key ? &slot.merge : nullptr;
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kFree;
    PairMerge merge{};
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  // Slot of the key, or the free slot where it belongs.
  std::size_t place(std::uint64_t key) const {
    std::size_t at = static_cast<std::size_t>(key * 0x9e3779b97f4a7c15u >> shift_);
    while (slots_[at].key != key && slots_[at].key != kFree) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  std::vector<Slot> slots_;
  int shift_;
};

}  // namespace bev
