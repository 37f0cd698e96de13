// Values of NF4 weights on the device.
#pragma once

#include <cstdint>

#include "tensor/nf4.h"

namespace bev::cuda {

// Nf4View as a kernel takes it.
struct Nf4Weight {
  const std::uint8_t* codes;
  const float* absmax;  // null: with double quantisation
  const std::uint8_t* absmax_codes;
  const float *nested, *map;
  std::int64_t elements, run, nested_run;
  float values[16];
};

inline Nf4Weight nf4_weight(const Nf4View& view) {
  const Nf4Layout& layout = view.layout;
  Nf4Weight weight{};
  weight.codes = view.codes();
  weight.elements = layout.elements;
  weight.run = layout.run;
  weight.nested_run = layout.nested_run;
  for (int i = 0; i < 16; ++i) weight.values[i] = kNf4Values[static_cast<std::size_t>(i)];
  if (!layout.nested()) {
    weight.absmax = view.absmax();
    return weight;
  }
  weight.absmax_codes = view.absmax_codes();
  weight.nested = view.nested();
  weight.map = view.map();
  return weight;
}

// The absmax of an element's run. Every operation is rounded, as bitsandbytes does.
__device__ inline float nf4_absmax(const Nf4Weight& weight, std::int64_t element) {
  const std::int64_t run = element / weight.run;
  if (weight.absmax != nullptr) return weight.absmax[run];
  const float* pair = weight.nested + 2 * (element / weight.nested_run);
  return __fadd_rn(__fmul_rn(weight.map[weight.absmax_codes[run]], pair[0]), pair[1]);
}

// The table of values in shared memory: 16 words lie in 16 banks. A barrier must follow.
__device__ inline void load_nf4_table(float (&table)[16], const Nf4Weight& weight) {
  if (threadIdx.x < 16) table[threadIdx.x] = weight.values[threadIdx.x];
}

}  // namespace bev::cuda
