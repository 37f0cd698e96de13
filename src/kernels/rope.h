// Rotary position embedding (RoPE).
#pragma once

#include <cstdint>
#include <span>

#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// Factor of a position: 1 + beta * log(1 + floor((position + shift) / period)).
struct PositionScale {
  double beta = 0;
  std::int64_t period = 1, shift = 0;
};

// cos_sin [T, R]: the first half cos, the second half sin of position * frequency for R/2
// frequencies, times scale and the factor of the position. f32 (the angle in f32 too, as in
// reference implementations) or f64.
struct RopeTableArgs {
  const std::int32_t* positions = nullptr;  // [T], device
  std::span<const double> frequencies;      // [R/2], host memory on both backends
  double scale = 1;
  View cos_sin;
  PositionScale growth = {};
};

// Rotates in place R dims, starting at `begin`, of each of the first `heads` heads in the rows of x
// [T, row]: pairs (i, i + R/2), or (2i, 2i + 1) if interleaved. inverse rotates back (the
// backward).
struct RopeApplyArgs {
  View x;
  View cos_sin;
  std::int64_t heads = 0, head_size = 0;
  std::int64_t begin = 0;
  bool interleaved = false;
  bool inverse = false;
};

struct RopeKernels {
  void (*table)(const Stream&, const RopeTableArgs&);
  void (*apply)(const Stream&, const RopeApplyArgs&);
};

}  // namespace bev
