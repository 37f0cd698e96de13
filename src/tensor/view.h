// A View is what kernels and collectives take: address, dtype, shape. Contiguous, row-major,
// non-owning.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace bev {

struct View {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  Shape shape;

  std::int64_t numel() const { return shape.numel(); }
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype); }
  bool empty() const { return data == nullptr; }

  // Typed address; the dtype must match.
  template <class T>
  T* as() const {
    BEV_CHECK(DtypeOf<T>::value == dtype, ErrorKind::kInternal, "view: is ", name_of(dtype),
              ", used as ", name_of(DtypeOf<T>::value));
    return static_cast<T*>(data);
  }
  // Address of an element of the flattened view.
  std::byte* address(std::int64_t element) const {
    return static_cast<std::byte*>(data) + static_cast<std::size_t>(element) * size_of(dtype);
  }
  // Rows [begin, end) of the first dim.
  View rows(std::int64_t begin, std::int64_t end) const;
  View reshape(Shape to) const;
  // The view with one dim.
  View flat() const { return reshape({numel()}); }
};

}  // namespace bev
