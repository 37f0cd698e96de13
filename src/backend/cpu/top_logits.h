// Scans of rows of logits: the maximum, and the largest few.
#pragma once

#include <limits>
#include <span>

#include "kernels/sampling.h"

namespace bev {

// Throws Error(kInternal) unless logits are rows of f32 or f64.
void check_logits(const char* op, const View& logits);

template <class T>
struct RowMaximum {
  T largest = -std::numeric_limits<T>::infinity();
  bool finite = false;  // no NaN, no +infinity, and some logit is finite
};
template <class T>
RowMaximum<T> row_maximum(std::span<const T> logits);

void top_logits(const Stream& stream, const TopLogitsArgs& args);

}  // namespace bev
