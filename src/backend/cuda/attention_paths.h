// The two ways to compute attention on CUDA. The table of kernels tries cuDNN first.
#pragma once

#include "kernels/attention.h"

namespace bev {

// Our kernels: any shape of the contract in f32, bf16 and f16. Deterministic.
void own_attention_forward(const Stream& stream, const AttentionForwardArgs& args);
void own_attention_backward(const Stream& stream, const AttentionBackwardArgs& args);

// cuDNN's library was found and its version is one we know.
bool has_cudnn(const Stream& stream);
// cuDNN: false, with nothing done, where it is not there or does not serve the shape.
bool cudnn_attention_forward(const Stream& stream, const AttentionForwardArgs& args);
bool cudnn_attention_backward(const Stream& stream, const AttentionBackwardArgs& args);

}  // namespace bev
