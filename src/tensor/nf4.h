// NF4, the 4-bit NormalFloat of QLoRA, bit for bit as bitsandbytes defines it: a tensor is
// flattened row-major and cut into blocks that share an absmax, and a value is kNf4Values[code] *
// absmax. Double quantisation stores the absmaxes in 8 bits: absmax = map[code] * nested absmax +
// offset, with a nested absmax for 256 blocks and one offset, the mean absmax, for the tensor.
// Every operation is rounded to f32, and the value then to the dtype of the tensor that was
// quantised.
#pragma once

#include <array>
#include <cstdint>

#include "base/divide.h"
#include "tensor/dtype.h"

namespace bev {

inline constexpr std::array<float, 16> kNf4Values = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};
inline constexpr std::int64_t kNf4NestedBlocks = 256;
inline constexpr std::int64_t kNf4MapSize = 256;

constexpr std::int64_t nf4_code_bytes(std::int64_t elements) {
  return ceil_div<std::int64_t>(elements, 2);
}

// How a tensor is quantised.
struct Nf4Format {
  std::int64_t block = 64;
  bool double_quant = false;
  Dtype dtype = Dtype::kF32;  // of the tensor that was quantised: values are rounded to it
  bool operator==(const Nf4Format&) const = default;
};
// Block sizes that bitsandbytes knows: powers of two from 32 to 4096.
constexpr bool is_nf4_block(std::int64_t block) {
  return block >= 32 && block <= 4096 && (block & (block - 1)) == 0;
}

// Memory of a part of a quantised tensor: codes, two a byte and the first in the high half, then
// the absmax of every `run` elements. A part may begin and end anywhere in the tensor's blocks, so
// `run` is a divisor of the block at whose multiples all of the part's blocks begin. With double
// quantisation an absmax is a code, followed by f32 pairs (nested absmax, offset) of every
// `nested_run` elements and by the map.
struct Nf4Layout {
  std::int64_t elements = 0;
  std::int64_t run = 64;
  std::int64_t nested_run = 0;  // 0: no double quantisation

  bool nested() const { return nested_run > 0; }
  std::int64_t runs() const { return ceil_div(elements, run); }
  std::int64_t nested_runs() const { return nested() ? ceil_div(elements, nested_run) : 0; }
  // Bytes where each array begins, and where the last one ends.
  std::int64_t absmax_begin() const { return aligned(nf4_code_bytes(elements)); }
  std::int64_t nested_begin() const {
    return absmax_begin() + aligned(runs() * (nested() ? 1 : kFloat));
  }
  std::int64_t map_begin() const { return nested_begin() + aligned(nested_runs() * 2 * kFloat); }
  std::int64_t bytes() const { return map_begin() + (nested() ? kNf4MapSize * kFloat : 0); }

 private:
  static constexpr std::int64_t kFloat = sizeof(float);
  static constexpr std::int64_t aligned(std::int64_t bytes) {
    return round_up<std::int64_t>(bytes, 16);
  }
};

// Such memory on a device.
struct Nf4View {
  const void* data = nullptr;
  Nf4Layout layout;
  Dtype dtype = Dtype::kF32;  // values are rounded to it

  const std::uint8_t* codes() const { return static_cast<const std::uint8_t*>(data); }
  const float* absmax() const { return at<float>(layout.absmax_begin()); }  // if not nested
  const std::uint8_t* absmax_codes() const { return at<std::uint8_t>(layout.absmax_begin()); }
  const float* nested() const { return at<float>(layout.nested_begin()); }
  const float* map() const { return at<float>(layout.map_begin()); }

 private:
  template <class T>
  const T* at(std::int64_t begin) const {
    return reinterpret_cast<const T*>(static_cast<const std::byte*>(data) + begin);
  }
};

}  // namespace bev
