// A matrix row distributed over a row of threads: thread x has packs x, x + blockDim.x, ...
#pragma once

#include <cstdint>

namespace bev::cuda {

template <int kPacks, int kCount>
struct RowPlaces {
  int packs;  // in the row; 0: this thread has none

  // Calls body(k, column of the first element) for the packs of this thread. k is constant after
  // unrolling, so arrays indexed by it stay in registers.
  template <class Body>
  __device__ void each(const Body& body) const {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int pack = static_cast<int>(threadIdx.x + k * blockDim.x);
      if (pack < packs) body(k, pack * kCount);
    }
  }
  // Calls body(k, index in the pack) for every element.
  template <class Body>
  __device__ void each_element(const Body& body) const {
    each([&](int k, int) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) body(k, i);
    });
  }
};

}  // namespace bev::cuda
