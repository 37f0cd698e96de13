// Launchers behind the CUDA optimizer table, each in its own source.
#pragma once

#include <span>

#include "kernels/optim.h"

namespace bev {
class CudaQueue;
}

namespace bev::cuda {

void adam(const Stream& stream, const AdamRule& rule, std::span<const AdamRange> ranges);
void lion(const Stream& stream, const LionArgs& args);
void direction(const Stream& stream, const DirectionArgs& args);
void matrix_update(const Stream& stream, const MatrixUpdateArgs& args);
void inverse_norm(const Stream& stream, const double* square_sum, double least, const View& factor);
void sum_squares(const Stream& stream, std::span<const View> tensors, double* sum);
// *sum += sum of numbers, in an order that depends only on their count.
void add_numbers(CudaQueue& queue, const double* numbers, std::int64_t count, double* sum);
void count_zeros(const Stream& stream, std::span<const View> tensors, double* count);
void clip(const Stream& stream, const ClipArgs& args);
void qk_clip(const Stream& stream, const QkClipArgs& args);
void normal(const Stream& stream, const NormalArgs& args);

}  // namespace bev::cuda
