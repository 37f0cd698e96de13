// Launchers behind quantize(), by source file.
#pragma once

#include "backend/cuda/runtime/queue.h"
#include "kernels/quantize.h"

namespace bev::cuda {

// Fused quantisation of norm and activation outputs; one source per dtype.
void quantize_fused_bf16(CudaQueue& queue, const QuantizeArgs& args);
void quantize_fused_f16(CudaQueue& queue, const QuantizeArgs& args);
// Row form only, with run scales: rows of experts, gathered or not, or of one matrix.
void quantize_rows(CudaQueue& queue, const QuantizeArgs& args);
// Rows of experts, in row and column form.
void quantize_grouped(CudaQueue& queue, const QuantizeArgs& args);

}  // namespace bev::cuda
