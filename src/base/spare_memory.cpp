#include "base/spare_memory.h"

#include "base/divide.h"

namespace bev {

namespace {
constexpr std::size_t kUnit = 64;
std::size_t units(std::size_t bytes) { return ceil_div(bytes, kUnit); }
}  // namespace

void* SpareMemory::take(std::size_t bytes) {
  const std::size_t size = units(bytes);
  if (spare_.size() <= size) spare_.resize(size + 1);
  if (spare_[size].empty()) {
    pieces_.push_back(std::make_unique<std::byte[]>(size * kUnit));
    return pieces_.back().get();
  }
  void* memory = spare_[size].back();
  spare_[size].pop_back();
  return memory;
}

void SpareMemory::give_back(void* memory, std::size_t bytes) {
  spare_[units(bytes)].push_back(memory);
}

}  // namespace bev
