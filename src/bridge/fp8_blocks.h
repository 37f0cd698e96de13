// Block-quantised FP8 weights of DeepSeek-V3's checkpoints: NAME is F8_E4M3 [R, C], and
// NAME_scale_inv [ceil(R / 128), ceil(C / 128)] has the dequantisation scale of each block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bridge/quantized_source.h"

namespace bev {

inline constexpr std::int64_t kFp8Block = 128;

std::string fp8_scale_name(const std::string& tensor);
bool is_fp8(const StoredTensor& stored);

class Fp8Blocks final : public QuantizedSource {
 public:
  // Throws Error(kInput) naming the tensor if its shape is another or its scales do not fit.
  Fp8Blocks(const StoredTensor& stored, const Shape& shape, const WeightFiles& files);

  Dtype dtype() const override { return Dtype::kBf16; }
  void read(Range elements, Dtype dtype, void* out) const override;

 private:
  std::span<const std::byte> numbers_;
  std::int64_t columns_ = 0;
  std::vector<float> scales_;
};

}  // namespace bev
