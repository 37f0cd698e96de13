// Launchers behind the CUDA optimizer table, each in its own source.
#pragma once

#include <span>

#include "kernels/optim.h"

namespace bev {
class CudaQueue;
}

namespace bev::cuda {

void adam(const Stream& stream, const AdamRule& rule, std::span<const AdamRange> ranges);
void sum_squares(const Stream& stream, std::span<const View> tensors, double* sum);
// *sum += sum of numbers, in an order that depends only on their count.
void add_numbers(CudaQueue& queue, const double* numbers, std::int64_t count, double* sum);
void count_zeros(const Stream& stream, std::span<const View> tensors, double* count);
void clip(const Stream& stream, const ClipArgs& args);
void normal(const Stream& stream, const NormalArgs& args);

}  // namespace bev::cuda
