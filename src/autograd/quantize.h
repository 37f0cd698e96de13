// Tensors to 8-bit floats, in memory of an arena.
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

// Which tensor, what its scale follows from, and the forms that are wanted of it.
struct QuantizeRequest {
  View x;  // [R, C]; without memory where a maker is used
  Fp8Recipe recipe;
  Fp8Role role = Fp8Role::kInput;
  const float* amax = nullptr;  // device; null where scales are of blocks
  float* seen = nullptr;        // device; null: not wanted
  bool rows = true, columns = true;
  const char* tag = "quantized";
  QuantizeMaker maker = {};
  QuantizeGroups groups = {};  // then x may be the tokens that rows are gathered from

  // Whether numbers in blocks of this kind can be made on the way.
  bool takes_maker() const {
    ScaleBlock block = block_of(recipe, role);
    if (groups.used()) return false;
    return block == ScaleBlock::kTensor || block == ScaleBlock::kRun;
  }
};

Quantized quantize(const QuantizeTools& tools, const QuantizeRequest& request);
// The same into what an earlier call with the same shapes and forms gave.
void quantize_into(const QuantizeTools& tools, const QuantizeRequest& request, const Quantized& to);

}  // namespace bev
