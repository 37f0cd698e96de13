// Entries of the optimizer table that are not updates.
#pragma once

#include "kernels/optim.h"

namespace bev::cuda {

void sum_squares(const Stream& stream, const View& x, double* sum);
void clip(const Stream& stream, const ClipArgs& args);
void normal(const Stream& stream, const NormalArgs& args);

}  // namespace bev::cuda
