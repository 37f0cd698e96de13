// A row of a matrix over a row of threads: thread x has packs x, x + blockDim.x, ... of it.
#pragma once

#include <cstdint>

namespace bev::cuda {

template <int kPacks, int kCount>
struct RowPlaces {
  int packs;  // of the row; 0: this thread has nothing of it

  // Calls body(k, column of the pack's first element) for this thread's packs. k is known when the
  // loop is unrolled, so arrays indexed by it stay in registers.
  template <class Body>
  __device__ void each(const Body& body) const {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int pack = static_cast<int>(threadIdx.x + k * blockDim.x);
      if (pack < packs) body(k, pack * kCount);
    }
  }
  // The same for every element, body(k, index in the pack).
  template <class Body>
  __device__ void each_element(const Body& body) const {
    each([&](int k, int) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) body(k, i);
    });
  }
};

}  // namespace bev::cuda
