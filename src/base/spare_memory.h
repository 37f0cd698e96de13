// Free-list allocator for small objects that are created and destroyed in every step: freed memory
// is reused by the next object of that size. Not thread safe.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace bev {

class SpareMemory {
 public:
  void* take(std::size_t bytes);
  void give_back(void* memory, std::size_t bytes);

 private:
  std::vector<std::unique_ptr<std::byte[]>> pieces_;  // owns all memory
  std::vector<std::vector<void*>> spare_;             // free lists, indexed by size in units
};

// Allocator for std::allocate_shared; each object keeps the SpareMemory alive.
template <class T>
struct SpareAllocator {
  using value_type = T;
  std::shared_ptr<SpareMemory> memory;

  explicit SpareAllocator(std::shared_ptr<SpareMemory> from) : memory(std::move(from)) {}
  template <class U>
  SpareAllocator(const SpareAllocator<U>& other) : memory(other.memory) {}
  T* allocate(std::size_t count) { return static_cast<T*>(memory->take(count * sizeof(T))); }
  void deallocate(T* at, std::size_t count) { memory->give_back(at, count * sizeof(T)); }
  template <class U>
  bool operator==(const SpareAllocator<U>& other) const {
    return memory == other.memory;
  }
};

}  // namespace bev
