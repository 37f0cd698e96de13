// Cross entropy on the device: z of a chunk of logits (scale, softcap) and its gradient.
#pragma once

#include <cstdint>

#include "backend/cuda/device/values.cuh"
#include "backend/cuda/runtime/queue.h"
#include "kernels/loss.h"

namespace bev::cuda {

// Sets the row padding to -infinity; called before the first pass over a chunk.
void mark_padding(const Stream& stream, const LossChunk& chunk);

// Implements LossKernels::whole.
void whole_loss(const Stream& stream, const LossWholeArgs& args);

constexpr float kBinary = 1.44269504088896341f;  // log2(e): converts z to base 2

// exp2 by the hardware approximation.
__device__ inline float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// Logits of -infinity mark vocabulary padding; they stay -infinity under a softcap and get no
// gradient.
template <class T>
struct Chunk {
  T* logits;
  const std::int32_t* targets;
  std::int64_t columns, own, first_row;  // row stride; columns without padding
  float scale, inner, cap;               // cap 0: none, then logits are multiplied by scale

  __device__ T* row(std::int64_t index) const { return logits + index * columns; }
  __device__ float capped(float x) const {
    if (cap == 0) return scale * x;
    return isinf(x) && x < 0 ? x : cap * tanhf(inner * x);
  }
  // Same in base 2.
  template <bool kCapped>
  __device__ float power(float x) const {
    return kCapped ? capped(x) * kBinary : x * (scale * kBinary);
  }
  // Column of a target in this shard of the vocabulary, or -1.
  __device__ std::int64_t column_of(std::int32_t target) const {
    const std::int64_t local = target - first_row;
    return target >= 0 && local >= 0 && local < own ? local : -1;
  }
};

// Common factor of all token weights; null: 1.
__device__ inline double value_of(const double* loss_factor) {
  return loss_factor != nullptr ? *loss_factor : 1.0;
}

// Inputs of a row's gradient; most is in base 2.
struct RowLoss {
  std::int32_t target;
  float most, sum, weight;
};

// p = exp(z - most) / sum; the gradient is factor * (p - [target]), with a softcap times its
// derivative 1 - (z / cap)^2. Works on z in base 2.
template <class T>
struct LogitGradient {
  float shift, factor, inverse;
  std::int64_t target;
  bool is_zero;  // the row is ignored or its weight is 0

  __device__ LogitGradient(const Chunk<T>& chunk, const RowLoss& row, double loss_factor)
      : shift(row.most + log2f(row.sum)),
        inverse(chunk.cap > 0 ? 1 / (chunk.cap * kBinary) : 0.0f),
        target(chunk.column_of(row.target)) {
    const double product =
        loss_factor * static_cast<double>(row.weight) * static_cast<double>(chunk.scale);
    factor = static_cast<float>(product);
    is_zero = row.target < 0 || product == 0;
  }
  // Replaces a pack by its gradient: `at` is its first column, power(x) converts an element to z.
  template <int N, class Power>
  __device__ void apply(std::int64_t at, Pack<T, N>& values, const Power& power) const {
    float grad[N];
#pragma unroll
    for (int i = 0; i < N; ++i) grad[i] = power_of_two(power(values[i]) - shift) * factor;
    if (target >= at && target < at + N) {
#pragma unroll
      for (int i = 0; i < N; ++i) grad[i] -= at + i == target ? factor : 0.0f;
    }
    if (inverse > 0) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float z = power(values[i]), ratio = z * inverse;
        grad[i] = isinf(z) ? 0.0f : grad[i] * (1 - ratio * ratio);
      }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) values.set(i, grad[i]);
  }
};

inline void check_chunk(const LossChunk& chunk, const View& row_max) {
  BEV_CHECK(chunk.logits.shape.ndim() == 2 && row_max.numel() == chunk.logits.shape[0] &&
                chunk.columns() <= chunk.logits.shape[1],
            "loss: logits ", chunk.logits.shape, " of ", chunk.columns(), " columns with ",
            row_max.numel(), " rows of statistics");
}

// Calls body(chunk, integral constant of elements per access, number of rows) if there are rows.
template <class Body>
void visit_chunk(const LossChunk& view, const Body& body) {
  BEV_CHECK(view.logit_scale > 0, "loss: the factor of logits is ", view.logit_scale);
  if (view.logits.shape[0] == 0) return;
  visit_value(view.logits.dtype, [&](auto type) {
    using T = decltype(type);
    const Chunk<T> chunk{
        .logits = address<T>(view.logits),
        .targets = view.targets,
        .columns = view.logits.shape[1],
        .own = view.columns(),
        .first_row = view.first_row,
        .scale = static_cast<float>(view.logit_scale),
        .inner = static_cast<float>(view.softcap > 0 ? view.logit_scale / view.softcap : 0),
        .cap = static_cast<float>(view.softcap)};
    const auto blocks = static_cast<unsigned>(view.logits.shape[0]);
    by_pack<T>(aligned(chunk.logits), chunk.columns,
               [&](auto count) { body(chunk, count, blocks); });
  });
}

}  // namespace bev::cuda
