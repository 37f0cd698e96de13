// MXFP4 (OCP Microscaling Formats 1.0): 32 numbers in a row share a power of two; each is a float
// of four bits, two of them in a byte, the first in its low half.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bev {

inline constexpr std::int64_t kMxfp4Block = 32;

// `blocks` of 16 bytes with one of `scales` each -> bf16, which holds every such number exactly
// but for those beyond its own range.
void expand_mxfp4(std::span<const std::byte> blocks, std::span<const std::byte> scales,
                  std::byte* out);

}  // namespace bev
