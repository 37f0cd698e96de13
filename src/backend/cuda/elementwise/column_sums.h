// Column sums of a matrix (bias gradients), in an order that depends only on its shape.
#pragma once

#include <cstdint>

#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

class CudaQueue;

namespace cuda {

// Implements ElementwiseKernels::column_sum.
void column_sum(const Stream& stream, const View& x, double beta, const View& out);

// Blocks of a kernel that writes partial sums: two for each of the 132 SMs of a Hopper GPU. The
// same on every GPU, so that the order of summation is too.
constexpr std::int64_t kMostPartialBlocks = 264;

// out [columns] (f32, bf16 or f16) = beta * out + column sums of partials [rows, columns]; does
// nothing if out is empty.
void add_partial_sums(CudaQueue& queue, const float* partials, std::int64_t rows,
                      std::int64_t columns, double beta, const View& out);

}  // namespace cuda
}  // namespace bev
