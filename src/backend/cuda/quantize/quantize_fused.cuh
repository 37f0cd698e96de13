// Fused FP8 quantisation of norm and activation outputs. A block computes a square of the output
// row by row into shared memory and quantises it like one that was loaded, which saves a write and
// a read of the output.
#pragma once

#include "backend/cuda/elementwise/activation_values.cuh"
#include "backend/cuda/norm/norm_value.cuh"
#include "backend/cuda/quantize/quantize_square.cuh"
#include "kernels/norm.h"

namespace bev::cuda {

// Squares in shared memory. Each thread only accesses its own 8 x 8 elements.
template <class T>
struct Tile {
  using Line = Pack<T, kItems>;
  static constexpr std::size_t kBytes = kSide * kSide * sizeof(T);
  unsigned char* memory;

  __device__ T* line(int part, int i) const {
    return reinterpret_cast<T*>(memory + part * kBytes) + (i * kThreads + threadIdx.x) * kItems;
  }
  __device__ Numbers<T> numbers(int part) const {
    Numbers<T> out;
#pragma unroll
    for (int i = 0; i < kItems; ++i) out.rows[i].load(line(part, i));
    return out;
  }
};

// Makers compute `kParts` squares side by side in an output of kParts * columns. load(row, column)
// reads the inputs of eight elements per part, make() computes them. The next row is loaded while
// the current one is computed.
template <class T>
struct NormMaker {
  using Line = Pack<T, kItems>;
  std::int64_t columns;
  const T *s, *weight, *bias;
  const float *mean, *rstd;
  float offset;

  static constexpr int kParts = 1;
  struct Inputs {
    Line lines[1];
    float mean, rstd;
  };
  __device__ Inputs load(std::int64_t row, std::int64_t column) const {
    Inputs in;
    in.lines[0].load(s + row * columns + column);
    in.mean = mean != nullptr ? mean[row] : 0.0f;
    in.rstd = rstd[row];
    return in;
  }
  __device__ void make(std::int64_t column, Inputs& in) const {
    Line& line = in.lines[0];
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const float scale = offset + widen(weight[column + j]);
      line.set(j, bias != nullptr
                      ? normalised(line[j], in.mean, in.rstd, scale, widen(bias[column + j]))
                      : normalised(line[j], in.mean, in.rstd, scale));
    }
  }
};

template <class T, bool kGated>
struct ActivationMaker {
  using Line = Pack<T, kItems>;
  std::int64_t columns;
  const T* x;
  Activation kind;
  Limits limits;

  static constexpr int kParts = 1;
  struct Inputs {
    Line lines[1], up;
  };
  __device__ Inputs load(std::int64_t row, std::int64_t column) const {
    Inputs in;
    const T* from = x + row * columns * (kGated ? 2 : 1) + column;
    in.lines[0].load(from);
    if constexpr (kGated) in.up.load(from + columns);
    return in;
  }
  __device__ void make(std::int64_t, Inputs& in) const {
    activate<kGated>(kind, limits, in.lines[0], in.up);
  }
};

// The gradient of a gated activation is that of gate
// up, both from the same inputs.
template <class T, bool kGated>
struct ActivationGradientMaker {
  using Line = Pack<T, kItems>;
  std::int64_t columns;
  const T *dy, *x;
  Activation kind;
  Limits limits;

  static constexpr int kParts = kGated ? 2 : 1;
  struct Inputs {
    Line lines[2], grad;
  };
  __device__ Inputs load(std::int64_t row, std::int64_t column) const {
    Inputs in;
    const T* from = x + row * columns * kParts + column;
    in.grad.load(dy + row * columns + column);
    in.lines[0].load(from);
    if constexpr (kGated) in.lines[1].load(from + columns);
    return in;
  }
  __device__ void make(std::int64_t, Inputs& in) const {
    activate_backward<kGated>(kind, limits, in.grad, in.lines[0], in.lines[1]);
  }
};

template <class T, class Maker>
__device__ void fill(const Maker& maker, const SquareTile& at, const Tile<T>& tile) {
  typename Maker::Inputs next, now;
  if (at.has_row(0)) next = maker.load(at.row(), at.column());
#pragma unroll 1
  for (int i = 0; i < kItems; ++i) {
    now = next;
    if (i + 1 < kItems && at.has_row(i + 1)) next = maker.load(at.row() + i + 1, at.column());
    if (at.has_row(i)) maker.make(at.column(), now);
#pragma unroll
    for (int part = 0; part < Maker::kParts; ++part) {
      if (!at.has_row(i)) {
#pragma unroll
        for (int j = 0; j < kItems; ++j) now.lines[part].set(j, 0);
      }
      now.lines[part].store(tile.line(part, i));
    }
  }
}

// An occupancy of three blocks per SM: one loads while others compute and store.
template <class T, class Maker, ScaleBlock kBlock, __nv_fp8_interpretation_t kKind>
__global__ void __launch_bounds__(kThreads, 3)
    quantize_fused_kernel(Maker maker, std::int64_t rows, QuantizeScale how, QuantizeTo to) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ SquareScales scales;
  const Tile<T> tile{memory};
  fill(maker, SquareTile(rows, maker.columns), tile);
#pragma unroll 1
  for (int part = 0; part < Maker::kParts; ++part) {
    Numbers<T> numbers = tile.numbers(part);
    __syncthreads();  // the memory of the first part is reused
    const SquareTile at(rows, part * maker.columns, (part + 1) * maker.columns,
                        Maker::kParts * maker.columns);
    quantize_numbers<T, kBlock, kKind>(numbers, at, how, memory, scales, to);
    __syncthreads();
  }
}

template <class T, class Maker, ScaleBlock kBlock, __nv_fp8_interpretation_t kKind>
void launch_fused(CudaQueue& queue, const QuantizeArgs& args, const Maker& maker) {
  constexpr std::size_t kBytes = Maker::kParts * Tile<T>::kBytes;
  static_assert(kSide * kSide <= Tile<T>::kBytes);
  const auto kernel = quantize_fused_kernel<T, Maker, kBlock, kKind>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kBytes)),
             "shared memory of quantize");
  kernel<<<squares(args.x.shape[0], maker.columns), kThreads, kBytes, queue.stream()>>>(
      maker, args.x.shape[0], quantize_scale(args), quantize_to(args));
  check_launch("quantize");
}

// Forward outputs are E4M3, gradients may be E5M2.
template <class T, bool kGradient, class Maker>
void by_block(CudaQueue& queue, const QuantizeArgs& args, const Maker& maker) {
  const bool runs = args.block == ScaleBlock::kRun;
  BEV_CHECK((runs || args.block == ScaleBlock::kTensor) &&
                (kGradient || args.format == Fp8Format::kE4m3) &&
                maker.columns % (runs ? kSide : kItems) == 0,
            ErrorKind::kInternal, "quantize: no maker of ", args.x.shape);
  if constexpr (kGradient) {
    if (args.format == Fp8Format::kE5m2) {
      return runs ? launch_fused<T, Maker, ScaleBlock::kRun, __NV_E5M2>(queue, args, maker)
                  : launch_fused<T, Maker, ScaleBlock::kTensor, __NV_E5M2>(queue, args, maker);
    }
  }
  runs ? launch_fused<T, Maker, ScaleBlock::kRun, __NV_E4M3>(queue, args, maker)
       : launch_fused<T, Maker, ScaleBlock::kTensor, __NV_E4M3>(queue, args, maker);
}

template <class T>
void quantize_fused(CudaQueue& queue, const QuantizeArgs& args) {
  if (const NormForwardArgs* norm = args.maker.norm) {
    BEV_CHECK(aligned(norm->x.data) && norm->residual.empty(), ErrorKind::kInternal,
              "quantize: of a norm of ", norm->x.shape);
    return by_block<T, false>(
        queue, args,
        NormMaker<T>{args.x.shape[1], address<T>(norm->x), address<T>(norm->weight),
                     address<T>(norm->bias), address<float>(norm->mean), address<float>(norm->rstd),
                     static_cast<float>(norm->offset)});
  }
  if (const ActivationForwardArgs* act = args.maker.activation) {
    BEV_CHECK(aligned(act->x.data), ErrorKind::kInternal, "quantize: an activation's x");
    const T* x = address<T>(act->x);
    const Limits limits = limits_of(act->limits);
    const std::int64_t columns = args.x.shape[1];
    if (!act->gated) {
      return by_block<T, false>(queue, args,
                                ActivationMaker<T, false>{columns, x, act->kind, limits});
    }
    return by_block<T, false>(queue, args, ActivationMaker<T, true>{columns, x, act->kind, limits});
  }
  const ActivationBackwardArgs& act = *args.maker.activation_gradient;
  BEV_CHECK(aligned(act.x.data, act.dy.data), ErrorKind::kInternal, "quantize: an activation's dy");
  const T *dy = address<T>(act.dy), *x = address<T>(act.x);
  const Limits limits = limits_of(act.limits);
  const std::int64_t columns = act.dy.shape[1];
  if (!act.gated) {
    return by_block<T, true>(queue, args,
                             ActivationGradientMaker<T, false>{columns, dy, x, act.kind, limits});
  }
  by_block<T, true>(queue, args,
                    ActivationGradientMaker<T, true>{columns, dy, x, act.kind, limits});
}

}  // namespace bev::cuda
