// A factor of matrix products as a device takes it.
#pragma once

#include <cstddef>

namespace bev {

// The form in which a device multiplies b, for factors that many products share. The first of them
// makes it, the others, which have the same op(b), read it.
struct PackedFactor {
  std::byte* memory = nullptr;  // packed_bytes(), 64-byte aligned
  bool made = false;
};

}  // namespace bev
