// Normal random numbers for initial weights, bit-equal on every machine: own code in double without
// FMA contraction, compiled once and not per instruction level.
#pragma once

#include <cstdint>

namespace bev::cpu {

// out[i] = float(mean + std z[first + i]) for i in [0, count). Block b of four numbers has the
// Philox counter {b low, b high, 0, 0}: words 0, 1 give r cos(2 pi u1), r sin(2 pi u1) with r =
// sqrt(-2 log u0), words 2, 3 the next two.
void normal_range(std::uint64_t key, std::int64_t first, std::int64_t count, double mean,
                  double std, float* out);

// out[i] = float(mean + most (2 u[first + i] - 1)) with u in (0, 1) from word i % 4 of block i / 4.
void uniform_range(std::uint64_t key, std::int64_t first, std::int64_t count, double mean,
                   double most, float* out);

}  // namespace bev::cpu
