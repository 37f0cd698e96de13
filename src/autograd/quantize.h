// Quantisation of tensors to FP8, into arena memory.
#pragma once

#include "kernels/kernels.h"
#include "kernels/quantize.h"
#include "tensor/arena.h"
#include "tensor/quantized.h"

namespace bev {

struct QuantizeTools {
  const Kernels& kernels;
  Stream stream;
  Arena& arena;
};

// Tensor to quantise, source of its scale, and requested forms.
struct QuantizeRequest {
  View x;  // [R, C]; without memory if a maker is used
  Fp8Recipe recipe;
  Fp8Role role = Fp8Role::kInput;
  const float* amax = nullptr;  // device; null for blockwise scales
  float* seen = nullptr;        // device; receives the amax; null: not wanted
  bool rows = true, columns = true;
  const char* tag = "quantized";
  QuantizeMaker maker = {};
  QuantizeGroups groups = {};  // if used, x may be the tokens from which rows are gathered

  // True if a maker can produce the values for this kind of blocks (fused quantisation).
  bool takes_maker() const {
    ScaleBlock block = block_of(recipe, role);
    if (groups.used()) return false;
    return block == ScaleBlock::kTensor || block == ScaleBlock::kRun;
  }
};

Quantized quantize(const QuantizeTools& tools, const QuantizeRequest& request);
// The same into the result of an earlier call with equal shapes and forms.
void quantize_into(const QuantizeTools& tools, const QuantizeRequest& request, const Quantized& to);

}  // namespace bev
