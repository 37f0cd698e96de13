// Encoding of TMA descriptors through the driver API.
#include "backend/cuda/gemm/tensor_maps.h"

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <array>

#include "base/error.h"

namespace bev::cuda {

namespace {

// Looked up in the driver, which the program does not link; null if the driver is too old.
PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                       cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const PFN_cuTensorMapEncodeTiled_v12000 function = find_encoder();
  return function;
}

CUtensorMapDataType type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case Dtype::kBf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case Dtype::kF16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case Dtype::kU8:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    default:
      BEV_FAIL(ErrorKind::kInternal, "CUDA: no tensor map of ", name_of(dtype));
  }
}

// Dims are innermost first; strides in bytes, for all dims but the innermost.
template <std::size_t kDims>
CUtensorMap encode(const View& tensor, const std::array<cuuint64_t, kDims>& dims,
                   const std::array<cuuint64_t, kDims - 1>& strides, int box_rows) {
  std::array<cuuint32_t, kDims> box, steps;
  box.fill(1);
  steps.fill(1);
  box[0] = static_cast<cuuint32_t>(kBoxRowBytes / size_of(tensor.dtype));
  box[1] = static_cast<cuuint32_t>(box_rows);
  CUtensorMap map;
  const CUresult result =
      encoder()(&map, type_of(tensor.dtype), kDims, tensor.data, dims.data(), strides.data(),
                box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  BEV_CHECK(result == CUDA_SUCCESS, ErrorKind::kDevice, "CUDA: no tensor map of ", tensor.shape,
            ", error ", static_cast<int>(result));
  return map;
}

// Sizes of the matrices in the last two dims of a tensor.
struct MatrixSizes {
  explicit MatrixSizes(const View& tensor, std::int64_t width = 0)
      : rows(dim_of(tensor, 2)),
        columns(width > 0 ? static_cast<cuuint64_t>(width) : dim_of(tensor, 1)),
        row_bytes(dim_of(tensor, 1) * size_of(tensor.dtype)) {}
  static cuuint64_t dim_of(const View& tensor, int from_last) {
    return static_cast<cuuint64_t>(tensor.shape[tensor.shape.ndim() - from_last]);
  }
  cuuint64_t rows, columns, row_bytes;
};

}  // namespace

bool has_tensor_maps() { return encoder() != nullptr; }

CUtensorMap tensor_map(const View& tensor, int box_rows, std::int64_t columns) {
  const MatrixSizes matrix(tensor, columns);
  if (tensor.shape.ndim() == 2) {
    return encode<2>(tensor, {matrix.columns, matrix.rows}, {matrix.row_bytes}, box_rows);
  }
  return encode<3>(tensor, {matrix.columns, matrix.rows, MatrixSizes::dim_of(tensor, 3)},
                   {matrix.row_bytes, matrix.row_bytes * matrix.rows}, box_rows);
}

CUtensorMap ragged_map(const View& matrix, int box_rows, std::int64_t columns) {
  constexpr cuuint64_t kEndless = 0x7fff0000;
  const MatrixSizes sizes(matrix, columns);
  return encode<4>(matrix, {sizes.columns, kRagged, kEndless, kEndless},
                   {sizes.row_bytes, sizes.row_bytes, (cuuint64_t{1} << 35) - sizes.row_bytes},
                   box_rows);
}

}  // namespace bev::cuda
