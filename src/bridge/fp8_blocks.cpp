#include "bridge/fp8_blocks.h"

#include <algorithm>
#include <array>

#include "base/divide.h"
#include "base/error.h"
#include "bridge/convert.h"
#include "tensor/fp8.h"

namespace bev {

namespace {

std::int64_t blocks_of(std::int64_t size) { return ceil_div(size, kFp8Block); }

// Values of all 256 codes.
std::array<float, 256> all_numbers() {
  std::array<float, 256> numbers;
  for (std::size_t bits = 0; bits < numbers.size(); ++bits) {
    numbers[bits] = from_fp8(Fp8Format::kE4m3, static_cast<std::uint8_t>(bits));
  }
  return numbers;
}

}  // namespace

std::string fp8_scale_name(const std::string& tensor) { return tensor + "_scale_inv"; }

bool is_fp8(const StoredTensor& stored) { return stored.dtype_name == "F8_E4M3"; }

Fp8Blocks::Fp8Blocks(const StoredTensor& stored, const Shape& shape, const WeightFiles& files)
    : numbers_(stored.bytes) {
  check_stored_shape(stored, shape);
  std::string name = fp8_scale_name(stored.name);
  const StoredTensor* found = files.find(name);
  BEV_CHECK(found != nullptr, ErrorKind::kInput, stored.name,
            " is stored as F8_E4M3 without its scales ", name);
  BEV_CHECK(found->dtype && is_float(*found->dtype), ErrorKind::kInput, name, " is stored as ",
            found->dtype_name, "; scales must be F32 or BF16");
  bool fits = stored.shape.size() == 2 && found->shape.size() == 2 &&
              found->shape[0] == blocks_of(stored.shape[0]) &&
              found->shape[1] == blocks_of(stored.shape[1]);
  BEV_CHECK(fits, ErrorKind::kInput, name, " does not have a scale for each block of ", kFp8Block,
            " x ", kFp8Block, " numbers of ", stored.name);
  columns_ = stored.shape[1];
  TensorBytes scales = files.tensor(name);
  scales_.resize(static_cast<std::size_t>(scales.shape.numel()));
  convert_elements({scales.bytes.data(), scales.dtype}, {scales_.data(), Dtype::kF32},
                   scales.shape.numel());
}

void Fp8Blocks::read(Range elements, Dtype dtype, void* out) const {
  const std::array<float, 256> numbers = all_numbers();
  auto* to = static_cast<std::byte*>(out);
  std::array<float, kFp8Block> part;
  for (std::int64_t at = elements.begin; at < elements.end;) {
    std::int64_t row = at / columns_, column = at % columns_;
    std::int64_t end =
        std::min({(column / kFp8Block + 1) * kFp8Block, columns_, column + elements.end - at});
    std::int64_t block = row / kFp8Block * blocks_of(columns_) + column / kFp8Block;
    float scale = scales_[static_cast<std::size_t>(block)];
    std::int64_t count = end - column;
    for (std::int64_t i = 0; i < count; ++i) {
      auto bits = std::to_integer<std::size_t>(numbers_[static_cast<std::size_t>(at + i)]);
      part[static_cast<std::size_t>(i)] = numbers[bits] * scale;
    }
    convert_elements({part.data(), Dtype::kF32}, {to, dtype}, count);
    to += static_cast<std::size_t>(count) * size_of(dtype);
    at += count;
  }
}

}  // namespace bev
