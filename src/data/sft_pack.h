// Puts conversations together into samples of one length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace bev {

// Bins of at most `capacity`, with the places of their lengths in rising order. Best fit, longest
// first; among equals the earlier. No length is above the capacity.
std::vector<std::vector<std::size_t>> pack_lengths(std::span<const std::int64_t> lengths,
                                                   std::int64_t capacity);

}  // namespace bev
