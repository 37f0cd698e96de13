// QLoRA's base: the weights of linear layers are kept in NF4 while they are frozen, and dequantised
// whenever they are used.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "autograd/param.h"

namespace bev {

class FieldList;

enum class BaseFormat : std::uint8_t { kAsStored, kNone, kNf4 };

struct BaseQuantization {
  BaseFormat quantize_base = BaseFormat::kAsStored;
  bool double_quant = false;
  std::int64_t quantize_block_size = 64;
  // Dtype of the values that are quantised; not a flag.
  Dtype dtype = Dtype::kF32;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
  bool used() const { return quantize_base == BaseFormat::kNf4; }
  Nf4Format format() const { return {quantize_block_size, double_quant, dtype}; }
  // Chooses the format of the linear layers' weights that do not train, or of all of them.
  void apply(std::span<Param* const> params, bool all_frozen) const;
};

}  // namespace bev
