// MLP activations, forward and backward, plain and gated, with optional router probabilities.
#include "backend/cuda/device/amax.cuh"
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/elementwise/activation_values.cuh"
#include "backend/cuda/elementwise/sigmoid_gate.h"
#include "backend/cuda/elementwise/xielu.h"
#include "backend/cuda/tables.h"
#include "kernels/activation.h"

namespace bev {

namespace cuda {
namespace {

// Occupancy in blocks per SM; fewer do not keep enough loads in flight.
constexpr int kBlocks = 6;

struct Weights {
  const float* probs;
  const std::int32_t* order;  // null: no weights

  // Slot of the row's weight; -1: the row is zero. 0 without weights.
  __device__ int slot(std::int64_t row) const { return order == nullptr ? 0 : order[row]; }
  __device__ float at(int slot) const { return order == nullptr ? 1.0f : probs[slot]; }
};
Weights weights_of(const RowWeights& weights) {
  return {address<float>(weights.probs), weights.order};
}

template <class T, int N>
__device__ void clear(Pack<T, N>& pack) {
#pragma unroll
  for (int i = 0; i < N; ++i) pack.set(i, 0);
}

// Memory bound. Plain: reads x, writes y. Gated: reads two elements of x per element of y.
template <class T, int N, bool kGated>
__global__ void __launch_bounds__(kThreads, kBlocks)
    forward_kernel(const T* x, T* y, std::int64_t rows, std::int64_t packs, Activation kind,
                   Limits limits, Weights weights, float* amax) {
  join_kernel_chain();
  const std::int64_t pack = own_pack();
  float thread_amax = 0;
  for (std::int64_t r = first_row(); r < rows && pack < packs; r += row_step()) {
    const T* from = x + (r * packs * (kGated ? 2 : 1) + pack) * N;
    const int slot = weights.slot(r);
    Pack<T, N> gate, up;
    gate.load(from);
    if constexpr (kGated) up.load(from + packs * N);
    if (slot < 0) {
      clear(gate);
    } else {
      activate<kGated>(kind, limits, gate, up, weights.at(slot));
    }
    gate.store(y + (r * packs + pack) * N);
    if (amax != nullptr) thread_amax = fmaxf(thread_amax, pack_amax(gate));
  }
  if (amax != nullptr) raise_amax_by_block(amax, thread_amax);
}

// Memory bound. Plain: reads dy and x, writes dx. Gated: reads dy, gate and up, writes the
// gradients of both.
template <class T, int N, bool kGated>
__global__ void __launch_bounds__(kThreads, kBlocks)
    backward_kernel(const T* dy, const T* x, T* dx, std::int64_t rows, std::int64_t packs,
                    Activation kind, Limits limits, float* amax) {
  const std::int64_t pack = own_pack();
  float thread_amax = 0;
  for (std::int64_t r = first_row(); r < rows && pack < packs; r += row_step()) {
    const std::int64_t at = (r * packs * (kGated ? 2 : 1) + pack) * N;
    Pack<T, N> grad, gate, up;
    grad.load(dy + (r * packs + pack) * N);
    gate.load(x + at);
    if constexpr (kGated) up.load(x + at + packs * N);
    activate_backward<kGated>(kind, limits, grad, gate, up);
    gate.store(dx + at);
    if constexpr (kGated) up.store(dx + at + packs * N);
    if (amax == nullptr) continue;
    thread_amax = fmaxf(thread_amax, pack_amax(gate));
    if constexpr (kGated) thread_amax = fmaxf(thread_amax, pack_amax(up));
  }
  if (amax != nullptr) raise_amax_by_block(amax, thread_amax);
}

// Backward with weights, including dprobs: one warp per row.
template <class T, int N, bool kGated>
__global__ void __launch_bounds__(kThreads)
    weighted_backward_kernel(const T* dy, const T* x, T* dx, std::int64_t rows, std::int64_t packs,
                             Activation kind, Limits limits, Weights weights, float* dprobs) {
  const std::int64_t r = own_pack() / kWarp;
  if (r >= rows) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp), slot = weights.slot(r);
  const float weight = slot < 0 ? 0 : weights.at(slot);
  float sum = 0;
  for (std::int64_t pack = lane; pack < packs; pack += kWarp) {
    const std::int64_t at = (r * packs * (kGated ? 2 : 1) + pack) * N;
    Pack<T, N> grad, gate, up;
    grad.load(dy + (r * packs + pack) * N);
    gate.load(x + at);
    if constexpr (kGated) up.load(x + at + packs * N);
    if (slot < 0) {
      clear(gate);
      clear(up);
    } else {
      sum += activate_backward<kGated>(kind, limits, grad, gate, up, weight);
    }
    gate.store(dx + at);
    if constexpr (kGated) up.store(dx + at + packs * N);
  }
  sum = reduce_warp<Sum>(sum);
  if (slot >= 0 && lane == 0) dprobs[slot] = sum;
}

// A plain activation is treated as one long row, unless rows have weights.
struct Sizes {
  std::int64_t rows, columns;
};
Sizes sizes_of(const View& y, bool gated, const RowWeights& weights) {
  const bool by_row = gated || weights.order != nullptr;
  return by_row ? Sizes{y.shape[0], y.shape.row_numel()} : Sizes{1, y.numel()};
}

template <class T, int N>
void launch_forward(CudaQueue& queue, const ActivationForwardArgs& args, Sizes sizes) {
  const std::int64_t packs = sizes.columns / N;
  const RowGrid grid = row_grid(sizes.rows, packs);
  const auto kernel = args.gated ? forward_kernel<T, N, true> : forward_kernel<T, N, false>;
  launch_overlapped(queue, "activation forward", kernel, grid.blocks, grid.threads, 0,
                    address<T>(args.x), address<T>(args.y), sizes.rows, packs, args.kind,
                    limits_of(args.limits), weights_of(args.weights), args.amax);
}

template <class T, int N>
void launch_backward(CudaQueue& queue, const ActivationBackwardArgs& args, Sizes sizes) {
  const std::int64_t packs = sizes.columns / N;
  const RowGrid grid = row_grid(sizes.rows, packs);
  const auto kernel = args.gated ? backward_kernel<T, N, true> : backward_kernel<T, N, false>;
  kernel<<<grid.blocks, grid.threads, 0, queue.stream()>>>(
      address<T>(args.dy), address<T>(args.x), address<T>(args.dx), sizes.rows, packs, args.kind,
      limits_of(args.limits), args.amax);
  check_launch("activation backward");
}

template <class T, int N>
void launch_weighted_backward(CudaQueue& queue, const ActivationBackwardArgs& args, Sizes sizes) {
  const auto blocks = static_cast<unsigned>(ceil_div(sizes.rows, kThreads / kWarp));
  const auto kernel =
      args.gated ? weighted_backward_kernel<T, N, true> : weighted_backward_kernel<T, N, false>;
  kernel<<<blocks, kThreads, 0, queue.stream()>>>(
      address<T>(args.dy), address<T>(args.x), address<T>(args.dx), sizes.rows, sizes.columns / N,
      args.kind, limits_of(args.limits), weights_of(args.weights), address<float>(args.dprobs));
  check_launch("weighed activation backward");
}

void forward(const Stream& stream, const ActivationForwardArgs& args) {
  const Sizes sizes = sizes_of(args.y, args.gated, args.weights);
  if (args.y.numel() == 0) return;
  visit_value(args.x.dtype, [&](auto type) {
    by_pack<decltype(type)>(aligned(args.x.data, args.y.data), sizes.columns, [&](auto count) {
      launch_forward<decltype(type), decltype(count)::value>(queue_of(stream), args, sizes);
    });
  });
}

void backward(const Stream& stream, const ActivationBackwardArgs& args) {
  const Sizes sizes = sizes_of(args.dy, args.gated, args.weights);
  const bool weighted = args.weights.order != nullptr;
  CudaQueue& queue = queue_of(stream);
  if (weighted && args.dprobs.numel() > 0) {
    check_cuda(cudaMemsetAsync(args.dprobs.data, 0, args.dprobs.bytes(), queue.stream()),
               "activation backward");
  }
  if (args.dy.numel() == 0) return;
  visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    by_pack<T>(aligned(args.x.data, args.dy.data, args.dx.data), sizes.columns, [&](auto count) {
      constexpr int N = decltype(count)::value;
      weighted ? launch_weighted_backward<T, N>(queue, args, sizes)
               : launch_backward<T, N>(queue, args, sizes);
    });
  });
}

}  // namespace
}  // namespace cuda

ActivationKernels cuda_table(Family<ActivationKernels>) {
  return {.forward = cuda::forward,
          .backward = cuda::backward,
          .xielu_forward = cuda::xielu_forward,
          .xielu_backward = cuda::xielu_backward,
          .sigmoid_gate = cuda::sigmoid_gate,
          .sigmoid_gate_backward = cuda::sigmoid_gate_backward};
}

}  // namespace bev
