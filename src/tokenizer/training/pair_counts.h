// Hash table of token pair counts, for the BPE trainer.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace bev {

// Two ids in one integer that orders like the pair.
inline std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

class PairCounts {
 public:
  // Count of the pair, initially 0. The reference is valid until the next call.
  std::int64_t& operator[](std::uint64_t key) {
    Slot* slot = &slots_[place(key)];
    if (slot->key == kFree) {
      if (++used_ * 3 > slots_.size() * 2) {
        grow();
        slot = &slots_[place(key)];
      }
      slot->key = key;
    }
    return slot->count;
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};  // ids are never negative
  struct Slot {
    std::uint64_t key = kFree;
    std::int64_t count = 0;
  };

  // Slot of the key, or the free slot where it belongs.
  std::size_t place(std::uint64_t key) const {
    int shift = 64 - std::countr_zero(slots_.size());
    auto at = static_cast<std::size_t>((key ^ key >> 32) * 0x9e3779b97f4a7c15u >> shift);
    while (slots_[at].key != key && slots_[at].key != kFree) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void grow() {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.size() * 2));
    for (const Slot& slot : old) {
      if (slot.key != kFree) slots_[place(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(1 << 16);
  std::size_t used_ = 0;
};

}  // namespace bev
