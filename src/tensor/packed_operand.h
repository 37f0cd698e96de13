// Cache of a GEMM operand in the backend's packed layout.
#pragma once

#include <cstddef>

namespace bev {

// Packed layout of b for a weight that several GEMMs share. The first GEMM packs it, later ones
// with the same op(b) reuse it.
struct PackedOperand {
  std::byte* memory = nullptr;  // packed_bytes() bytes, 64-byte aligned
  bool made = false;
};

}  // namespace bev
