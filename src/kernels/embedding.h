// Embedding lookup and its deterministic gradient.
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

// dweight = beta * dweight + scale * (rows of dy summed by index). dweight is f32, bf16 (summed in
// f32) or f64. Rows with the same index are summed in the order of t.
struct EmbeddingBackwardArgs {
  const std::int32_t* index = nullptr;
  View dy, dweight;
  std::int64_t first_row = 0;
  double scale = 1;
  double beta = 0;
  std::int32_t skip_index = -1;  // padding index, whose row gets no gradient; -1: none
};

struct EmbeddingKernels {
  void (*forward)(const Stream&, const EmbeddingForwardArgs&);
  void (*backward)(const Stream&, const EmbeddingBackwardArgs&);
};

}  // namespace bev
