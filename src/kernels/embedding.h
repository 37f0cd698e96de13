// Rows of a table by index, and the deterministic gradient of it.
#pragma once

#include <cstdint>

#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// out[t] = scale * weight[index[t] - first_row] (added to out when accumulate); an index outside of
// [first_row, first_row + rows of weight) gives zeros. out [T, H], weight [R, H] of one dtype.
struct EmbeddingForwardArgs {
  const std::int32_t* index = nullptr;  // [T], device
  View weight, out;
  std::int64_t first_row = 0;
  double scale = 1;
  bool accumulate = false;
};

// dweight = beta * dweight + scale * (rows of dy summed by index). dweight: f32, bf16 (summed in
// f32) or f64. The order of summation is the order of t.
struct EmbeddingBackwardArgs {
  const std::int32_t* index = nullptr;
  View dy, dweight;
  std::int64_t first_row = 0;
  double scale = 1;
  double beta = 0;
  std::int32_t skip_index = -1;  // an index whose row gets nothing; -1: none
};

struct EmbeddingKernels {
  void (*forward)(const Stream&, const EmbeddingForwardArgs&);
  void (*backward)(const Stream&, const EmbeddingBackwardArgs&);
};

}  // namespace bev
