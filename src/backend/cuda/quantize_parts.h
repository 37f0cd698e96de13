// Parts of quantize(), by source.
#pragma once

#include "backend/cuda/queue.h"
#include "kernels/quantize.h"

namespace bev::cuda {

// Results of norms and activations, as they are made; a source for each dtype.
void quantize_made_bf16(CudaQueue& queue, const QuantizeArgs& args);
void quantize_made_f16(CudaQueue& queue, const QuantizeArgs& args);
// Rows alone, with scales of runs: of experts, gathered or not, or of one matrix.
void quantize_rows(CudaQueue& queue, const QuantizeArgs& args);
// Rows of experts.
void quantize_grouped(CudaQueue& queue, const QuantizeArgs& args);

}  // namespace bev::cuda
