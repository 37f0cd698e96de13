// Read-only array of numbers in unaligned memory, such as a memory-mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace bev {

template <class T>
class PackedArray {
 public:
  PackedArray() = default;
  // Non-owning: the first count * sizeof(T) bytes must outlive the array.
  PackedArray(const std::byte* bytes, std::size_t count) : bytes_(bytes), count_(count) {}
  explicit PackedArray(std::span<const T> values)
      : PackedArray(reinterpret_cast<const std::byte*>(values.data()), values.size()) {}

  std::size_t size() const { return count_; }
  T operator[](std::size_t i) const {
    T value;
    std::memcpy(&value, bytes_ + i * sizeof(T), sizeof(T));
    return value;
  }
  std::vector<T> list() const {
    std::vector<T> out(count_);
    if (count_ > 0) std::memcpy(out.data(), bytes_, count_ * sizeof(T));
    return out;
  }
  void prefetch(std::size_t i) const { __builtin_prefetch(bytes_ + i * sizeof(T)); }
  std::span<const std::byte> bytes() const { return {bytes_, count_ * sizeof(T)}; }
  PackedArray sub(std::size_t begin, std::size_t count) const {
    return {bytes_ + begin * sizeof(T), count};
  }

 private:
  const std::byte* bytes_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace bev
