// Results of norms and activations to 8-bit floats, as they are made; a source for each dtype.
#pragma once

#include "backend/cuda/queue.h"
#include "kernels/quantize.h"

namespace bev::cuda {

void quantize_made_bf16(CudaQueue& queue, const QuantizeArgs& args);
void quantize_made_f16(CudaQueue& queue, const QuantizeArgs& args);

}  // namespace bev::cuda
