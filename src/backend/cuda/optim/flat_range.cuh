// A flat range of any floating dtype that an optimizer kernel reads or writes. The branch on the
// dtype is uniform over all threads: it is free in a memory bound kernel and avoids an
// instantiation per combination.
#pragma once

#include <cstdint>

#include "backend/cuda/device/values.cuh"

namespace bev::cuda {

// N elements as loaded: all loads of a thread are in flight before the first is converted. N > 4
// implies 2-byte elements.
template <int N>
union RawPack {
  Pack<float, (N < 4 ? N : 4)> singles;
  Pack<Bfloat, N> halves;
};

struct FlatRange {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;

  template <int N>
  __device__ RawPack<N> load(std::int64_t at) const {
    RawPack<N> raw;
    if (is_narrow<N>()) {
      raw.halves.load(static_cast<const Bfloat*>(data) + at);
    } else {
      raw.singles.load(static_cast<const float*>(data) + at);
    }
    return raw;
  }
  template <int N>
  __device__ Pack<float, N> widened(const RawPack<N>& raw) const {
    Pack<float, N> values;
    if constexpr (N <= 4) {
      if (dtype == Dtype::kF32) return raw.singles;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) values.set(i, raw.halves[i]);
    return values;
  }
  // True if elements have two bytes; always so for N > 4.
  template <int N>
  __device__ bool is_narrow() const {
    return N > 4 || dtype == Dtype::kBf16;
  }
  // For optimizer state: f32 or bf16.
  template <int N>
  __device__ void store_state(std::int64_t at, const Pack<float, N>& values) const {
    if (is_narrow<N>()) return store_as<Bfloat, N>(at, values);
    values.store(static_cast<float*>(data) + at);
  }
  template <int N>
  __device__ void store(std::int64_t at, const Pack<float, N>& values) const {
    switch (dtype) {
      case Dtype::kBf16:
        return store_as<Bfloat, N>(at, values);
      case Dtype::kF16:
        return store_as<Half, N>(at, values);
      default:
        return values.store(static_cast<float*>(data) + at);
    }
  }

 private:
  template <class T, int N>
  __device__ void store_as(std::int64_t at, const Pack<float, N>& values) const {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.set(i, values[i]);
    pack.store(static_cast<T*>(data) + at);
  }
};

// Range of a tensor in f32 or bf16 (or, for the copy of the model, f16).
inline FlatRange flat_range(const char* op, const View& view, bool half_too = false) {
  const bool known = view.dtype == Dtype::kF32 || view.dtype == Dtype::kBf16 ||
                     (half_too && view.dtype == Dtype::kF16);
  BEV_CHECK(view.empty() || known, ErrorKind::kDevice, "CUDA: ", op, ": ", name_of(view.dtype),
            " is not computed with; f32 and bf16 are");
  return {view.data, view.dtype};
}
// The copy of the model; empty if it is the same memory as main.
inline FlatRange copy_range(const char* op, const View& main, const View& values) {
  return values.data == main.data ? FlatRange{} : flat_range(op, values, true);
}
// True if it is aligned for accesses of `count` elements.
inline bool in_packs(const FlatRange& range, int count) {
  const auto bytes = static_cast<std::uintptr_t>(count) * size_of(range.dtype);
  return reinterpret_cast<std::uintptr_t>(range.data) % (bytes < 16 ? bytes : 16) == 0;
}

}  // namespace bev::cuda
