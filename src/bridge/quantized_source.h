// Tensors that files hold in fewer bits, with further tensors that say how to dequantise them: FP8
// with a scale per block, and bitsandbytes' NF4.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bridge/weight_files.h"
#include "comm/placement.h"

namespace bev {

class QuantizedSource {
 public:
  virtual ~QuantizedSource() = default;
  // Dtype of the values that it stands for.
  virtual Dtype dtype() const = 0;
  // Dequantises elements of the flattened tensor in f32, rounded to `dtype`.
  virtual void read(Range elements, Dtype dtype, void* out) const = 0;
};

bool is_quantized(const StoredTensor& stored, const WeightFiles& files);
// Names of the tensors that belong to it.
std::vector<std::string> scale_names(const StoredTensor& stored, const WeightFiles& files);
// Why it is not a tensor of this shape that can be read; "" if it is.
std::string quantized_problem(const StoredTensor& stored, const Shape& shape,
                              const WeightFiles& files);
// The files must outlive the source. Throws Error(kInput) if there is a problem.
std::unique_ptr<QuantizedSource> open_quantized(const StoredTensor& stored, const Shape& shape,
                                                const WeightFiles& files);

}  // namespace bev
