// Sums on the host for transports between CPU ranks.
#pragma once

#include <cstdint>
#include <span>

#include "comm/group.h"

namespace bev {

// out[i] = reduction over sources of source[i], in the order of the sources; 16-bit floats are
// summed in f32 and rounded once. out may be one of the sources.
void reduce_elements(Dtype dtype, Reduction reduction, std::span<const void* const> sources,
                     void* out, std::int64_t count);

}  // namespace bev
