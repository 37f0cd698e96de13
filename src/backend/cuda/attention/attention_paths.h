// The two attention implementations on CUDA, cuDNN and our own. The kernel table tries cuDNN first.
#pragma once

#include "kernels/attention.h"

namespace bev {

// Our kernels: every shape of the contract in f32, bf16 and f16. Deterministic.
void own_attention_forward(const Stream& stream, const AttentionForwardArgs& args);
void own_attention_backward(const Stream& stream, const AttentionBackwardArgs& args);
// Same, and exact: the bits of a query's row depend on the query, the keys that it sees and their
// positions in the run only, whatever the batch and the chunks are, paged or not. Keys are taken in
// order, in tiles that begin at multiples of their size; there is no split-KV.
void exact_attention_forward(const Stream& stream, const AttentionForwardArgs& args);
// The table with that forward.
AttentionKernels cuda_exact_attention();

// True if the cuDNN library was found in a supported version.
bool has_cudnn(const Stream& stream);
// Return false, and do nothing, if cuDNN is missing or does not support the shape.
bool cudnn_attention_forward(const Stream& stream, const AttentionForwardArgs& args);
bool cudnn_attention_backward(const Stream& stream, const AttentionBackwardArgs& args);

}  // namespace bev
