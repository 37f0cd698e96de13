// Element conversion between floating-point dtypes, rounded to nearest even. Memory may be
// unaligned; equal dtypes are copied bit for bit.
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
