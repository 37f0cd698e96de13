// The two attention implementations on CUDA, cuDNN and our own. The kernel table tries cuDNN first.
#pragma once

#include "kernels/attention.h"

namespace bev {

// Our kernels: every shape of the contract in f32, bf16 and f16. Deterministic.
void own_attention_forward(const Stream& stream, const AttentionForwardArgs& args);
void own_attention_backward(const Stream& stream, const AttentionBackwardArgs& args);

// True if the cuDNN library was found in a supported version.
bool has_cudnn(const Stream& stream);
// Return false, and do nothing, if cuDNN is missing or does not support the shape.
bool cudnn_attention_forward(const Stream& stream, const AttentionForwardArgs& args);
bool cudnn_attention_backward(const Stream& stream, const AttentionBackwardArgs& args);

}  // namespace bev
