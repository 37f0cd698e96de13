// Launchers behind the CUDA norm table, each in its own source.
#pragma once

#include "kernels/norm.h"

namespace bev::cuda {

void norm_forward(const Stream& stream, const NormForwardArgs& args);
void norm_backward(const Stream& stream, const NormBackwardArgs& args);
void head_norm_forward(const Stream& stream, const HeadNormForwardArgs& args);
void head_norm_backward(const Stream& stream, const HeadNormBackwardArgs& args);
void width_norm_sums(const Stream& stream, const WidthNormSumsArgs& args);
void width_norm_forward(const Stream& stream, const WidthNormForwardArgs& args);
void width_norm_backward(const Stream& stream, const WidthNormBackwardArgs& args);

}  // namespace bev::cuda
