// Bin packing of conversations into samples (sequence packing).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace bev {

// Best-fit decreasing; ties in input order. Returns bins of total length at most `capacity`, each
// with ascending indices into lengths. No length may exceed the capacity.
std::vector<std::vector<std::size_t>> pack_lengths(std::span<const std::int64_t> lengths,
                                                   std::int64_t capacity);

}  // namespace bev
