#include "models/base_quantization.h"

#include "base/error.h"
#include "base/fields.h"

namespace bev {

void BaseQuantization::fields(FieldList& list) {
  list.section("precision");
  list.add(
      "quantize-base", quantize_base,
      {{"as_stored", BaseFormat::kAsStored},
       {"none", BaseFormat::kNone},
       {"nf4", BaseFormat::kNf4}},
      "how the frozen weights of linear layers are kept: nf4, 4 bits a number that are "
      "dequantised when they are used (QLoRA); none, in the model's dtype; as_stored, in NF4 if "
      "the folder of --hf-model has them so");
  list.add("double-quant", double_quant,
           "with --quantize-base nf4: the scales of blocks in 8 bits too");
  list.add("quantize-block-size", quantize_block_size,
           "with --quantize-base nf4: numbers that share a scale, a power of two from 32 to 4096");
}

std::vector<std::string> BaseQuantization::problems() const {
  std::vector<std::string> out;
  if (!is_nf4_block(quantize_block_size)) {
    out.push_back(concat("--quantize-block-size: ", quantize_block_size,
                         " is not a power of two from 32 to 4096"));
  }
  bool changed = double_quant || quantize_block_size != Nf4Format().block;
  if (!used() && changed) {
    out.push_back(concat(double_quant ? "--double-quant" : "--quantize-block-size",
                         ": needs --quantize-base nf4"));
  }
  return out;
}

void BaseQuantization::apply(std::span<Param* const> params, bool all_frozen) const {
  if (!used()) return;
  for (Param* param : params) {
    if (!param->linear || (param->trains && !all_frozen)) continue;
    param->format = ParamFormat::kNf4;
    param->nf4 = format();
  }
}

}  // namespace bev
