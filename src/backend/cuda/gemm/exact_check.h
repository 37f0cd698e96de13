// Trials of GEMM kernels against each other: operands on which sums in another order differ, and
// the comparison of results bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace bev {
class CudaQueue;
}

namespace bev::cuda {

// An operand [rows, columns], whose rows are `stride` apart. Its columns come in pairs of the same
// numbers, of either sign and with widely spread exponents; `negated` changes the sign of one of
// each pair. If one operand is negated and the other is not, all sums are 0 but for their rounding
// errors, which depend on the order of the terms, and which even a 16-bit result shows.
struct TrialOperand {
  void* data;
  Dtype dtype;
  std::int64_t rows, columns, stride;
  bool negated;
  int exponent = 0;  // added to all
  std::uint64_t key = 0;
};
void fill_trial(CudaQueue& queue, const TrialOperand& operand);
// True if all bytes, an even number, are equal; the host waits. `flag` is on the device.
bool are_equal(CudaQueue& queue, const void* a, const void* b, std::size_t bytes, int* flag);

}  // namespace bev::cuda
