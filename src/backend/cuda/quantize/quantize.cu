// FP8 quantisation: dispatch by block and format, transposes, amax, and delayed scaling.
#include <utility>

#include "backend/cuda/device/amax.cuh"
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/quantize/nf4_launchers.h"
#include "backend/cuda/quantize/quantize_launchers.h"
#include "backend/cuda/quantize/quantize_square.cuh"
#include "backend/cuda/tables.h"
#include "kernels/activation.h"
#include "kernels/norm.h"
#include "kernels/quantize.h"

namespace bev {

namespace cuda {
namespace {

template <class T, ScaleBlock kBlock, __nv_fp8_interpretation_t kKind>
__global__ void __launch_bounds__(kThreads, at_once<T>(kBlock == ScaleBlock::kRun ? 3 : 4))
    quantize_kernel(const T* x, std::int64_t rows, std::int64_t columns, QuantizeScale how,
                    QuantizeTo to) {
  __shared__ __align__(16) unsigned char turned[kSide * kSide];
  __shared__ SquareScales scales;
  const SquareTile at(rows, columns);
  Numbers<T> numbers;
  numbers.load(x, at);
  quantize_numbers<T, kBlock, kKind>(numbers, at, how, turned, scales, to);
}

__global__ void __launch_bounds__(kThreads)
    transpose_kernel(const std::uint8_t* x, std::int64_t rows, std::int64_t columns,
                     QuantizeTo to) {
  __shared__ __align__(16) unsigned char turned[kSide * kSide];
  const SquareTile at(rows, columns);
  Bytes lines[kItems], turned_lines[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (!at.has_row(i)) continue;
    const uint2 word = *reinterpret_cast<const uint2*>(x + (at.row() + i) * columns + at.column());
    lines[i] = {word.x, word.y};
  }
  turn(lines, turned_lines);
  store_columns(turned_lines, turned, at, to);
}

template <class T, int kCount>
__global__ void __launch_bounds__(kThreads)
    amax_kernel(const T* x, std::int64_t packs, float* amax) {
  float most = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs;
       i += step) {
    Pack<T, kCount> pack;
    pack.load(x + i * kCount);
    most = fmaxf(most, pack_amax(pack));
  }
  raise_amax_by_block(amax, most);
}

struct AmaxUpdate {
  const float* seen;
  float *history, *used;
  std::int64_t count, steps, interval;
  bool largest;
  const StepState* state;
};

__global__ void __launch_bounds__(kThreads) update_amax_kernel(AmaxUpdate update) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= update.count || update.state->skip != 0) return;
  const std::int64_t now = update.state->update;
  float* entries = update.history + i * update.steps;
  float next = update.seen[i];
  entries[now % update.steps] = next;
  if (now % update.interval != 0) return;
  for (std::int64_t k = 0; update.largest && k < update.steps; ++k) {
    next = entries[k] > next ? entries[k] : next;
  }
  if (next > 0 && isfinite(next)) update.used[i] = next;
}

template <class T, ScaleBlock kBlock, __nv_fp8_interpretation_t kKind>
void launch(CudaQueue& queue, const QuantizeArgs& args, const QuantizeScale& how,
            const QuantizeTo& to) {
  const std::int64_t rows = args.x.shape[0], columns = args.x.shape[1];
  quantize_kernel<T, kBlock, kKind><<<squares(rows, columns), kThreads, 0, queue.stream()>>>(
      address<T>(args.x), rows, columns, how, to);
  check_launch("quantize");
}

template <class T, ScaleBlock kBlock>
void by_format(CudaQueue& queue, const QuantizeArgs& args, const QuantizeScale& how,
               const QuantizeTo& to) {
  if (args.format == Fp8Format::kE4m3) return launch<T, kBlock, __NV_E4M3>(queue, args, how, to);
  launch<T, kBlock, __NV_E5M2>(queue, args, how, to);
}

std::uint8_t* bytes_of(const View& view) { return static_cast<std::uint8_t*>(view.data); }

}  // namespace
}  // namespace cuda

namespace {

void check_quantize(const QuantizeArgs& args) {
  const View& x = args.x;
  const std::int64_t rows = args.groups.rows_of(x), columns = x.shape[1];
  const std::int64_t padded = args.groups.padded_of(x, args.block);
  const bool whole = args.block == ScaleBlock::kTensor;
  BEV_CHECK(columns % (args.groups.used() ? kScaleBlock : 16) == 0 &&
                (!whole || args.amax != nullptr) &&
                (!args.groups.used() || args.block == ScaleBlock::kRun) &&
                (args.rows.empty() || args.rows.shape == Shape{rows, columns}) &&
                (args.columns.empty() || args.columns.shape == Shape{columns, padded}) &&
                cuda::aligned(x.data, args.rows.data, args.columns.data),
            ErrorKind::kInternal, "quantize: ", x.shape, " to ", args.rows.shape, " and ",
            args.columns.shape);
}

void quantize(const Stream& stream, const QuantizeArgs& args);

// For what has no fused kernels, the tensor is materialised first: f32, since nobody trains in f32
// with FP8 GEMMs, and ragged runs.
void quantize_written(const Stream& stream, QuantizeArgs args) {
  QuantizeMaker maker = std::exchange(args.maker, {});
  args.x.data = queue_of(stream).scratch(args.x.bytes());
  if (maker.norm != nullptr) {
    NormForwardArgs norm = *maker.norm;
    norm.y = args.x;
    cuda_kernels().norm.forward(stream, norm);
  } else if (maker.activation != nullptr) {
    ActivationForwardArgs activation = *maker.activation;
    activation.y = args.x;
    cuda_kernels().activation.forward(stream, activation);
  } else {
    ActivationBackwardArgs gradient = *maker.activation_gradient;
    gradient.dx = args.x;
    cuda_kernels().activation.backward(stream, gradient);
  }
  quantize(stream, args);
}

bool has_ragged_runs(const QuantizeArgs& args) {
  const ActivationBackwardArgs* gradient = args.maker.activation_gradient;
  const std::int64_t columns = gradient != nullptr ? gradient->dy.shape[1] : args.x.shape[1];
  return args.block == ScaleBlock::kRun && columns % kScaleBlock != 0;
}

void quantize_fused(const Stream& stream, const QuantizeArgs& args) {
  if (has_ragged_runs(args)) return quantize_written(stream, args);
  switch (args.x.dtype) {
    case Dtype::kBf16:
      return cuda::quantize_fused_bf16(queue_of(stream), args);
    case Dtype::kF16:
      return cuda::quantize_fused_f16(queue_of(stream), args);
    default:
      return quantize_written(stream, args);
  }
}

void quantize(const Stream& stream, const QuantizeArgs& args) {
  if (is_emulated(args.block)) return cuda_emulate_fp4(stream, args);
  check_quantize(args);
  if (args.x.shape[1] == 0) return;
  if (args.maker.used()) return quantize_fused(stream, args);
  const bool rows_alone = !args.rows.empty() && args.columns.empty() && args.seen == nullptr;
  if (args.block == ScaleBlock::kRun && rows_alone) {
    return cuda::quantize_rows(queue_of(stream), args);
  }
  if (args.groups.used()) return cuda::quantize_grouped(queue_of(stream), args);
  const cuda::QuantizeScale how = cuda::quantize_scale(args);
  const cuda::QuantizeTo to = cuda::quantize_to(args);
  CudaQueue& queue = queue_of(stream);
  cuda::visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    switch (args.block) {
      case ScaleBlock::kRun:
        return cuda::by_format<T, ScaleBlock::kRun>(queue, args, how, to);
      case ScaleBlock::kSquare:
        return cuda::by_format<T, ScaleBlock::kSquare>(queue, args, how, to);
      default:
        return cuda::by_format<T, ScaleBlock::kTensor>(queue, args, how, to);
    }
  });
}

void transpose(const Stream& stream, const View& x, const View& columns) {
  const std::int64_t rows = x.shape[0], width = x.shape[1];
  const std::int64_t padded = padded_rows(ScaleBlock::kTensor, rows);
  BEV_CHECK((columns.shape == Shape{width, padded}) && width % 16 == 0 &&
                cuda::aligned(x.data, columns.data),
            ErrorKind::kInternal, "transpose: ", x.shape, " to ", columns.shape);
  if (x.numel() == 0) return;
  const cuda::QuantizeTo to{nullptr, nullptr, cuda::bytes_of(columns), nullptr, 0, 0, padded};
  cuda::transpose_kernel<<<cuda::squares(rows, width), cuda::kThreads, 0,
                           queue_of(stream).stream()>>>(cuda::bytes_of(x), rows, width, to);
  check_launch("transpose");
}

void amax(const Stream& stream, const View& x, float* amax) {
  CudaQueue& queue = queue_of(stream);
  check_cuda(cudaMemsetAsync(amax, 0, sizeof(float), queue.stream()), "clear a number");
  if (x.numel() == 0) return;
  cuda::visit_value(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* data = cuda::address<T>(x);
    cuda::by_pack<T>(cuda::aligned(data), x.numel(), [&](auto count) {
      constexpr int kCount = decltype(count)::value;
      const std::int64_t packs = x.numel() / kCount;
      // Several packs per thread, so that their loads are in flight together.
      constexpr std::int64_t kPacks = 8;
      const std::int64_t blocks =
          std::min<std::int64_t>(ceil_div(packs, cuda::kThreads * kPacks), 4096);
      cuda::amax_kernel<T, kCount>
          <<<static_cast<unsigned>(blocks), cuda::kThreads, 0, queue.stream()>>>(data, packs, amax);
      check_launch("amax");
    });
  });
}

void update_amax(const Stream& stream, const AmaxUpdateArgs& args) {
  const std::int64_t count = args.seen.numel();
  const cuda::AmaxUpdate update{args.seen.as<float>(), args.history.as<float>(),
                                args.used.as<float>(), count,
                                args.history.shape[1], args.interval,
                                args.largest,          args.state};
  if (count == 0) return;
  cuda::update_amax_kernel<<<static_cast<unsigned>(ceil_div(count, cuda::kThreads)), cuda::kThreads,
                             0, queue_of(stream).stream()>>>(update);
  check_launch("update_amax");
}

}  // namespace

QuantizeKernels cuda_table(Family<QuantizeKernels>) {
  return {.amax = amax,
          .quantize = quantize,
          .transpose = transpose,
          .scaled_gemm = cuda_scaled_gemm,
          .grouped_gemm = cuda_grouped_scaled,
          .grouped_wgrad = cuda_grouped_scaled_wgrad,
          .update_amax = update_amax,
          .dequantize_nf4 = cuda::dequantize_nf4,
          .takes_nf4 = cuda::takes_nf4,
          .nf4_gemm = cuda::nf4_gemm};
}

}  // namespace bev
