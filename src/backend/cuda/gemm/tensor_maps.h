// TMA descriptors (tensor maps) for the matrices of grouped GEMMs. TMA moves boxes with rows of 128
// bytes between global and shared memory, where they are swizzled; outside the tensor it reads
// zeros and writes nothing.
#pragma once

#include <cuda.h>

#include "tensor/view.h"

namespace bev::cuda {

inline constexpr int kBoxRowBytes = 128;

// True if the driver can encode tensor maps.
bool has_tensor_maps();

// Descriptor of [R, C] or [E, R, C]: coordinates (column, row) or (column, row, matrix). The rows
// of a matrix may have padding, which is out of bounds: then `columns` is their width without it.
CUtensorMap tensor_map(const View& tensor, int box_rows, std::int64_t columns = 0);

// Descriptor with a row limit given by coordinates, for experts whose row counts are only known on
// the device: row i of rows [begin, end) is (column, kRagged - (end - begin) + i, end, kRagged),
// and rows from end - begin on are out of bounds. The last stride is 2^35 bytes minus a row, so
// that addresses wrap around to the matrix.
inline constexpr int kRagged = 1 << 30;
CUtensorMap ragged_map(const View& matrix, int box_rows, std::int64_t columns = 0);

}  // namespace bev::cuda
