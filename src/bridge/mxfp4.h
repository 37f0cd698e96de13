// MXFP4 (OCP Microscaling Formats 1.0): 32 consecutive values share a power-of-two scale; each
// value is an E2M1 float, two per byte, the first in the low half.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bev {

inline constexpr std::int64_t kMxfp4Block = 32;

// Dequantises `blocks` of 16 bytes with one scale each to bf16, which is exact except for values
// beyond its range.
void expand_mxfp4(std::span<const std::byte> blocks, std::span<const std::byte> scales,
                  std::byte* out);

}  // namespace bev
