// Sums over the rows of a matrix, in an order that depends on its shape only.
#pragma once

#include <cstdint>

#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

class CudaQueue;

namespace cuda {

// ElementwiseKernels::column_sum.
void column_sum(const Stream& stream, const View& x, double beta, const View& out);

// Blocks of a kernel that leaves partial sums: two for each of the 132 multiprocessors of a Hopper
// card. It is the same on every card, so that the order of summation is too.
constexpr std::int64_t kMostPartialBlocks = 264;

// out [columns] (f32, bf16 or f16) = beta * out + the sum over rows of partials [rows, columns];
// an empty out is left alone.
void add_partial_sums(CudaQueue& queue, const float* partials, std::int64_t rows,
                      std::int64_t columns, double beta, const View& out);

}  // namespace cuda
}  // namespace bev
