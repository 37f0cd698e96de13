#include "tensor/shape.h"

#include "base/error.h"

namespace bev {

Shape::Shape(std::initializer_list<std::int64_t> dims)
    : Shape(std::span<const std::int64_t>(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const std::int64_t> dims) {
  BEV_CHECK(dims.size() <= kMaxDims, "shape: at most ", kMaxDims, " dims, got ", dims.size());
  for (std::int64_t dim : dims) {
    BEV_CHECK(dim >= 0, "shape: a dim cannot be negative, got ", dim);
    dims_[static_cast<std::size_t>(ndim_++)] = dim;
  }
}

std::int64_t Shape::numel() const {
  std::int64_t product = 1;
  for (std::int64_t dim : dims()) product *= dim;
  return product;
}

std::int64_t Shape::row_numel() const {
  std::int64_t product = 1;
  for (int dim = 1; dim < ndim_; ++dim) product *= (*this)[dim];
  return product;
}

bool Shape::operator==(const Shape& other) const {
  if (ndim_ != other.ndim_) return false;
  for (int dim = 0; dim < ndim_; ++dim) {
    if ((*this)[dim] != other[dim]) return false;
  }
  return true;
}

void append_text(std::string& out, const Shape& shape) {
  out.push_back('[');
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    if (dim > 0) out.append(", ");
    out.append(std::to_string(shape[dim]));
  }
  out.push_back(']');
}

std::string to_text(const Shape& shape) {
  std::string out;
  append_text(out, shape);
  return out;
}

}  // namespace bev
