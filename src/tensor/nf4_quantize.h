// Quantises to NF4 and back on the host; see tensor/nf4.h. Codes, absmaxes and offsets are those of
// bitsandbytes on one thread of a CPU.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/nf4.h"

namespace bev {

// Scales of a whole quantised tensor.
struct Nf4Scales {
  std::int64_t block = 64;
  std::vector<float> absmax;        // one per block, or with double quantisation one per 256 blocks
  std::vector<std::uint8_t> codes;  // with double quantisation: of the blocks' absmaxes
  std::vector<float> map;           // what these codes mean
  float offset = 0;

  bool nested() const { return !map.empty(); }
  float of_block(std::int64_t index) const;
};

// Quantises the blocks of `values` into two codes a byte and an absmax per block. A tensor may come
// in several calls of whole blocks; its last one may be partial. Returns the index of the first
// value that is NaN or infinite, or -1.
std::int64_t quantize_nf4(std::span<const float> values, std::int64_t block,
                          std::span<std::uint8_t> codes, std::span<float> absmax);
// Scales of a tensor with these absmaxes, with or without double quantisation.
Nf4Scales make_nf4_scales(std::vector<float> absmax, const Nf4Format& format);

// Elements [begin, begin + count) of the flattened tensor, rounded to `dtype` and back to f32.
void dequantize_nf4(std::span<const std::uint8_t> codes, const Nf4Scales& scales, Dtype dtype,
                    std::int64_t begin, std::int64_t count, float* out);

// bitsandbytes' signed dynamic map, sorted.
std::vector<float> nf4_dynamic_map();

}  // namespace bev
