// How Hopper's copy engine sees the matrices of grouped products: it moves boxes, rows of 128
// bytes, between them and shared memory, where they are swizzled. Of what is outside it reads zeros
// and writes nothing.
#pragma once

#include <cuda.h>

#include "tensor/view.h"

namespace bev::cuda {

inline constexpr int kBoxRowBytes = 128;

// Whether the driver can make such maps.
bool has_tensor_maps();

// A matrix [R, C] or matrices [E, R, C]: coordinates (column, row) or (column, row, matrix).
CUtensorMap tensor_map(const View& tensor, int box_rows);

// A matrix whose rows end where the coordinates say: row i of the rows [begin, end), which is
// outside from row end - begin on, is (column, kRagged - (end - begin) + i, end, kRagged). The last
// stride is 2^35 bytes less a row, so that addresses wrap around to those of the matrix.
inline constexpr int kRagged = 1 << 30;
CUtensorMap ragged_map(const View& matrix, int box_rows);

}  // namespace bev::cuda
