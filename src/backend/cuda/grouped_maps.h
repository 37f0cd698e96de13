// How Hopper's copy engine sees the operands of grouped products: it takes boxes 64 numbers wide to
// shared memory, swizzled in rows of 128 bytes, with zeros for what is outside.
#pragma once

#include <cuda.h>

#include "tensor/view.h"

namespace bev::cuda {

inline constexpr int kBoxColumns = 64;

// Whether the driver can make such maps.
bool has_tensor_maps();

// A matrix [R, C] or matrices [E, R, C] of 16-bit numbers: coordinates (column, row) or (column,
// row, matrix).
CUtensorMap tensor_map(const View& tensor, int box_rows);

// A matrix whose rows end where the coordinates say: row i of the rows [begin, end), and zeros from
// row end - begin on, is (column, kRagged - (end - begin) + i, end, kRagged). The last stride is
// 2^35 bytes less a row, so that addresses wrap around to those of the matrix.
inline constexpr int kRagged = 1 << 30;
CUtensorMap ragged_map(const View& matrix, int box_rows);

}  // namespace bev::cuda
