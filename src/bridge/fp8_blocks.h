// Block-quantised FP8 weights of DeepSeek-V3's checkpoints: NAME is F8_E4M3 [R, C], and
// NAME_scale_inv [ceil(R / 128), ceil(C / 128)] has the dequantisation scale of each block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bridge/weight_files.h"
#include "comm/placement.h"

namespace bev {

inline constexpr std::int64_t kFp8Block = 128;

std::string fp8_scale_name(const std::string& tensor);
bool is_fp8(const StoredTensor& stored);
// Why the tensor cannot be read with the scales in the files; "" if it can.
std::string fp8_problem(const StoredTensor& stored, const WeightFiles& files);

class Fp8Blocks {
 public:
  // The files must outlive it. Throws Error(kInput) if there is a problem.
  Fp8Blocks(const StoredTensor& stored, const WeightFiles& files);

  // Dequantises elements of the flattened tensor in f32, rounded to `dtype`.
  void read(Range elements, Dtype dtype, void* out) const;

 private:
  std::span<const std::byte> numbers_;
  std::int64_t columns_ = 0;
  std::vector<float> scales_;
};

}  // namespace bev
