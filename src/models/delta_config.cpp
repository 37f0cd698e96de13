#include "models/delta_config.h"

#include "base/fields.h"
#include "base/text.h"
#include "kernels/recurrent.h"

namespace bev {

void DeltaConfig::fields(FieldList& list) {
  constexpr double kMostHeads = 1 << 16, kMostDims = 1 << 12;
  list.section(kSection);
  list.add("linear-conv-kernel-dim", conv_kernel,
           "gated delta layers: tokens that the convolution sees")
      .min(1)
      .limit(static_cast<double>(kConvWidthLimit));
  list.add("linear-key-head-dim", key_head_dim, "gated delta layers: dims of a head of q and k")
      .min(1)
      .limit(kMostDims);
  list.add("linear-value-head-dim", value_head_dim, "gated delta layers: dims of a head of v")
      .min(1)
      .limit(kMostDims);
  list.add("linear-num-key-heads", num_key_heads, "gated delta layers: heads of q and k")
      .min(1)
      .limit(kMostHeads);
  list.add("linear-num-value-heads", num_value_heads,
           "gated delta layers: heads of v, a multiple of those of q and k")
      .min(1)
      .limit(kMostHeads);
}

std::vector<std::string> DeltaConfig::problems() const {
  std::vector<std::string> out;
  if (num_value_heads % num_key_heads != 0) {
    out.push_back(concat("--linear-num-value-heads: ", num_value_heads,
                         " is no multiple of --linear-num-key-heads ", num_key_heads,
                         "; key heads are shared evenly"));
  }
  return out;
}

}  // namespace bev
