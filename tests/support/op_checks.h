// What a row of an op table must pass. On the CPU: finite differences in f64, parity of the other
// dtypes, and the exact contracts (threads, shared gradients, frozen parameters, accumulation). On
// another backend: outputs and gradients near the CPU's in f64.
#pragma once

#include <vector>

#include "tests/support/op_rig.h"

namespace bev::test {

// All checks of a row on the CPU; of one with many numbers only parity of its dtypes.
void check_op(const OpCase& test);
// Outputs and gradients of a row with these kernels against the CPU's in f64, of the same rounded
// inputs, in every dtype of a model. A failure names row, dtype, kind of run, tensor and error.
void compare_op(const OpCase& test, const Kernels& kernels);
// Outputs and gradients of both are the same to the bit in every dtype.
void expect_same_bits(const OpCase& a, const OpCase& b);

// Makes each row a test: `<suite>.<row>` is check_op, and in a build with CUDA `Cuda/<suite>.<row>`
// is compare_op on the GPU, skipped where there is none.
struct OpRows {
  OpRows(const char* suite, const std::vector<OpCase>& rows);
};

}  // namespace bev::test
