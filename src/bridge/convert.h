// Copies of elements between floating dtypes, rounded to nearest even. Memory may be unaligned, and
// bits are kept when the dtype stays.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace bev {

struct ConstElements {
  const void* data = nullptr;
  Dtype dtype = Dtype::kF32;
};
struct Elements {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
};

void convert_elements(ConstElements from, Elements to, std::int64_t count);
// from [rows, columns] -> to [columns, rows]
void transpose_elements(ConstElements from, Elements to, std::int64_t rows, std::int64_t columns);

}  // namespace bev
