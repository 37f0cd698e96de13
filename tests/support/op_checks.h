// Checks of an op case (a row of an op table). On the CPU: finite differences in f64, parity of the
// other dtypes, and exact contracts (thread count, shared gradients, frozen parameters,
// accumulation). On another backend: outputs and gradients close to the CPU's in f64.
#pragma once

#include <vector>

#include "tests/support/op_rig.h"

namespace bev::test {

// Runs all checks of a row on the CPU; for rows with many elements only the parity of dtypes.
void check_op(const OpCase& test);
// Compares outputs and gradients of a row with these kernels to the CPU's in f64, for the same
// rounded inputs, in every model dtype. A failure names the row, dtype, kind of run, tensor and
// error.
void compare_op(const OpCase& test, const Kernels& kernels);
// Expects bitwise equal outputs and gradients of both in every dtype.
void expect_same_bits(const OpCase& a, const OpCase& b);

// Registers each row as a test: `<suite>.<row>` is check_op, and in a build with CUDA
// `Cuda/<suite>.<row>` is compare_op on the GPU, skipped if there is none.
struct OpRows {
  OpRows(const char* suite, const std::vector<OpCase>& rows);
};

}  // namespace bev::test
