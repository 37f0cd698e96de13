// Host reductions for the CPU transports.
#pragma once

#include <cstdint>
#include <span>

#include "comm/group.h"

namespace bev {

// out[i] = reduction of source[i] over the sources, in their order; 16-bit floats accumulate in f32
// and are rounded once. out may alias a source.
void reduce_elements(Dtype dtype, Reduction reduction, std::span<const void* const> sources,
                     void* out, std::int64_t count);

}  // namespace bev
