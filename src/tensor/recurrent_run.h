// The parts of a batch that a recurrence or a causal convolution passes over.
#pragma once

#include <cstdint>

#include "tensor/view.h"

namespace bev {

// Consecutive tokens of one document in consecutive rows. States are rows of a tensor.
struct RecurrentRun {
  std::int64_t row = 0, count = 0;
  std::int64_t enter = -1;  // state before the first token; -1: zeros
  std::int64_t leave = -1;  // receives the state after the last token; -1: nothing does
};

// States of one kind: columns from `first` of rows [R, E] in the accumulate type. Empty: none.
struct StateRows {
  View rows;
  std::int64_t first = 0;
};

}  // namespace bev
