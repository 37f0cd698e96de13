// Division of work into pieces by shape only. A piece is computed by one thread, so results do not
// depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/divide.h"
#include "base/thread_pool.h"
#include "tensor/stream.h"

namespace bev::cpu::BEV_CPU_LEVEL {

// Elements in a piece of a flat range: 64 KiB of floats.
constexpr std::int64_t kFlatPiece = 16384;

// Calls body(begin, end) for [0, count) in steps of `size`; body must not throw.
template <class Body>
void for_ranges(const Stream& stream, std::int64_t count, std::int64_t size, const Body& body) {
  stream.pool->run(ceil_div(count, size), [&](std::int64_t piece) {
    body(piece * size, std::min(count, (piece + 1) * size));
  });
}

// Rows per piece, so that a piece has about kFlatPiece elements.
constexpr std::int64_t rows_per_piece(std::int64_t columns) {
  return std::max<std::int64_t>(1, kFlatPiece / std::max<std::int64_t>(1, columns));
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
