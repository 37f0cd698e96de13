// Tensor shape of at most kMaxDims dims, stored by value without allocation.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace bev {

class Shape {
 public:
  static constexpr int kMaxDims = 5;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims);
  explicit Shape(std::span<const std::int64_t> dims);

  int ndim() const { return ndim_; }
  std::int64_t operator[](int dim) const { return dims_[static_cast<std::size_t>(dim)]; }
  std::int64_t& operator[](int dim) { return dims_[static_cast<std::size_t>(dim)]; }
  // Product of all dims; 1 for a scalar.
  std::int64_t numel() const;
  // Product of all dims but the first.
  std::int64_t row_numel() const;
  std::span<const std::int64_t> dims() const {
    return {dims_.data(), static_cast<std::size_t>(ndim_)};
  }
  bool operator==(const Shape& other) const;

 private:
  std::array<std::int64_t, kMaxDims> dims_{};
  int ndim_ = 0;
};

// "[2, 3]"
std::string to_text(const Shape& shape);
void append_text(std::string& out, const Shape& shape);

}  // namespace bev
