#include "bridge/quantized_source.h"

#include "base/error.h"
#include "bridge/fp8_blocks.h"
#include "bridge/nf4_tensor.h"

namespace bev {

bool is_quantized(const StoredTensor& stored, const WeightFiles& files) {
  return is_fp8(stored) || is_nf4(stored, files);
}

std::vector<std::string> scale_names(const StoredTensor& stored, const WeightFiles& files) {
  if (is_nf4(stored, files)) return nf4_names(stored.name);
  return {fp8_scale_name(stored.name)};
}

std::string quantized_problem(const StoredTensor& stored, const Shape& shape,
                              const WeightFiles& files) {
  try {
    open_quantized(stored, shape, files);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::unique_ptr<QuantizedSource> open_quantized(const StoredTensor& stored, const Shape& shape,
                                                const WeightFiles& files) {
  if (is_nf4(stored, files)) return std::make_unique<StoredNf4>(stored, shape, files);
  return std::make_unique<Fp8Blocks>(stored, shape, files);
}

}  // namespace bev
