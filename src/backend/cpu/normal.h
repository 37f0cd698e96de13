// Normal numbers for initial weights, with the same bits on every machine: own code in double
// without fused operations, compiled once and not per instruction level.
#pragma once

#include <cstdint>

namespace bev::cpu {

// out[i] = float(mean + std z[first + i]) for i in [0, count). Block b of four numbers has
// the generator's counter {b low, b high, 0, 0}: its words 0, 1 give r cos(2 pi u1), r sin(2 pi u1)
// with r = sqrt(-2 log u0), words 2, 3 the next two.
void normal_range(std::uint64_t key, std::int64_t first, std::int64_t count, double mean,
                  double std, float* out);

}  // namespace bev::cpu
