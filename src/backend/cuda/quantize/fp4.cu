// Emulated FP4 (NVFP4, MXFP4) quantisation, for experiments: simple rather than fast.
#include <cuda_fp8.h>

#include "backend/cuda/device/amax.cuh"
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/tables.h"
#include "kernels/quantize.h"

namespace bev {

namespace cuda {
namespace {

// Same as round_to_fp4 on the host. Adding the shift rounds to whole steps in the last bits.
__device__ float fp4_of(float value) {
  const float size = fabsf(value);
  const float step = size < 2 ? 0.5f : size < 4 ? 1.0f : 2.0f;
  const float shift = step * 12582912.0f;  // 1.5 x 2^23
  const float rounded = size < 6 ? __fadd_rn(__fadd_rn(size, shift), -shift) : 6.0f;
  return isnan(value) ? value : value < 0 ? -rounded : rounded;
}

template <ScaleBlock kBlock>
__device__ float run_scale(float amax, float of_tensor) {
  if (!isfinite(amax) || !isfinite(of_tensor)) return __int_as_float(0x7fc00000);
  if (amax == 0) return 0;
  if constexpr (kBlock == ScaleBlock::kMxfp4) {
    const int exponent = ilogbf(amax) - 2;
    return ldexpf(1, exponent < -127 ? -127 : exponent);
  } else {
    const float part = __fdiv_rn(__fdiv_rn(amax, 6), of_tensor);
    const __nv_fp8_storage_t bits = __nv_cvt_float_to_fp8(part, __NV_SATFINITE, __NV_E4M3);
    return __fmul_rn(__half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3))), of_tensor);
  }
}

template <ScaleBlock kBlock, class T, int N>
__device__ void emulate_run(Pack<T, N>& values, float of_tensor) {
  float amax = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) amax = larger(amax, values[i]);
  const float scale = run_scale<kBlock>(amax, of_tensor);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float x = values[i], zero = isnan(x) ? x : 0;
    values.set(i, scale == 0 ? zero : __fmul_rn(fp4_of(__fdiv_rn(x, scale)), scale));
  }
}

template <ScaleBlock kBlock>
__device__ float scale_of_tensor(const float* amax) {
  if constexpr (kBlock == ScaleBlock::kMxfp4) return 1;
  return *amax == 0 ? 1 : __fdiv_rn(*amax, 6 * 448);
}

// One thread per run of a row.
template <ScaleBlock kBlock, class T, int N>
__global__ void __launch_bounds__(kThreads)
    fp4_rows_kernel(const T* x, std::int64_t runs, const float* amax, T* rows) {
  const std::int64_t run = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (run >= runs) return;
  Pack<T, N> values;
  values.load(x + run * N);
  emulate_run<kBlock>(values, scale_of_tensor<kBlock>(amax));
  values.store(rows + run * N);
}

// One thread per run of a column; adjacent threads have adjacent columns (coalesced).
template <ScaleBlock kBlock, class T, int N>
__global__ void __launch_bounds__(kThreads)
    fp4_columns_kernel(const T* x, std::int64_t rows, std::int64_t columns, std::int64_t padded,
                       const float* amax, T* to) {
  const std::int64_t run = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (run >= columns * (padded / N)) return;
  const std::int64_t column = run % columns, row = run / columns * N;
  Pack<T, N> values;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    values.set(i, row + i < rows ? widen(x[(row + i) * columns + column]) : 0.0f);
  }
  emulate_run<kBlock>(values, scale_of_tensor<kBlock>(amax));
  values.store(to + column * padded + row);
}

template <ScaleBlock kBlock, class T>
void launch(CudaQueue& queue, const QuantizeArgs& args) {
  constexpr int kRun = static_cast<int>(emulated_run(kBlock));
  const std::int64_t rows = args.x.shape[0], columns = args.x.shape[1];
  const std::int64_t padded = padded_rows(args.block, rows);
  const T* x = address<T>(args.x);
  auto blocks = [](std::int64_t runs) { return static_cast<unsigned>(ceil_div(runs, kThreads)); };
  if (T* to = address<T>(args.rows)) {
    fp4_rows_kernel<kBlock, T, kRun>
        <<<blocks(rows * columns / kRun), kThreads, 0, queue.stream()>>>(x, rows * columns / kRun,
                                                                         args.amax, to);
    check_launch("fp4 rows");
  }
  if (T* to = address<T>(args.columns)) {
    fp4_columns_kernel<kBlock, T, kRun>
        <<<blocks(columns * (padded / kRun)), kThreads, 0, queue.stream()>>>(x, rows, columns,
                                                                             padded, args.amax, to);
    check_launch("fp4 columns");
  }
}

}  // namespace
}  // namespace cuda

void cuda_emulate_fp4(const Stream& stream, const QuantizeArgs& args) {
  BEV_CHECK(args.x.shape[1] % emulated_run(args.block) == 0 &&
                cuda::aligned(args.x.data, args.rows.data, args.columns.data),
            ErrorKind::kInternal, "emulate fp4: ", args.x.shape);
  if (args.x.numel() == 0) return;
  cuda::visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.block == ScaleBlock::kNvfp4) {
      cuda::launch<ScaleBlock::kNvfp4, T>(queue_of(stream), args);
    } else {
      cuda::launch<ScaleBlock::kMxfp4, T>(queue_of(stream), args);
    }
  });
}

}  // namespace bev
