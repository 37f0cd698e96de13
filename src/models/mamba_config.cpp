#include "models/mamba_config.h"

#include "base/fields.h"
#include "base/text.h"
#include "kernels/recurrent.h"

namespace bev {

namespace {
constexpr double kMaxSize = 1 << 24;
}

void MambaConfig::fields(FieldList& list) {
  list.section(kSection);
  list.add("mamba-num-heads", num_heads, "heads of a Mamba-2 mixer")
      .min(0)
      .limit(1 << 16)
      .defaults_to("2 hidden-size / mamba-head-dim");
  list.add("mamba-head-dim", head_dim, "dims of one of these heads").min(1).limit(1 << 16);
  list.add("mamba-state-dim", state_dim, "state of each of these dims").min(1).limit(1 << 16);
  list.add("mamba-num-groups", num_groups, "groups of heads that share B and C")
      .min(1)
      .limit(1 << 16);
  list.add("mamba-conv-kernel", conv_kernel, "tokens that the convolution sees")
      .min(1)
      .limit(static_cast<double>(kConvWidthLimit));
  list.add("mamba-conv-bias", conv_bias, "bias of the convolution");
  list.add("mamba-in-bias", in_bias, "bias of the input projection");
  list.add("mamba-out-bias", out_bias, "bias of the output projection");
  list.add(
      "mamba-norm", norm,
      {{"none", RecurrentNorm::kNone},
       {"group", RecurrentNorm::kGroup},
       {"width", RecurrentNorm::kWidth}},
      "norm before the output projection: none, of each group of heads, or of the whole width");
  list.add("mamba-norm-before-gate", norm_before_gate, "that norm comes before the gate");
  list.add("mamba-dt-min", dt_min, "least time step").min(0);
  list.add("mamba-dt-max", dt_max, "largest time step; 0: no limit").min(0);
  list.add("mamba-in-multiplier", in_multiplier, "factor of the mixer's input").above(0);
  list.add("mamba-out-multiplier", out_multiplier, "factor of the mixer's output").above(0);
  list.add("mamba-part-multipliers", part_multipliers,
           "factors of z, x, B, C and dt after the input projection; five numbers or none")
      .above(0);
  list.add("mamba-attention-in-multiplier", attention_in_multiplier,
           "factor of the input of attention in parallel with Mamba-2")
      .above(0);
  list.add("mamba-attention-out-multiplier", attention_out_multiplier, "factor of its output")
      .above(0);
}

std::vector<std::string> MambaConfig::problems(std::int64_t hidden_size) const {
  std::vector<std::string> out;
  if (num_heads == 0 && 2 * hidden_size % head_dim != 0) {
    out.push_back(concat("--mamba-head-dim: ", head_dim, " does not divide 2 x --hidden-size ",
                         hidden_size, "; change one, or give --mamba-num-heads"));
    return out;
  }
  if (heads(hidden_size) % num_groups != 0) {
    out.push_back(concat("--mamba-num-groups: ", num_groups, " does not divide the ",
                         heads(hidden_size), " Mamba heads; give a divisor of them"));
  }
  if (dt_max != 0 && dt_max < dt_min) {
    out.push_back(concat("--mamba-dt-max: ", dt_max, " is below --mamba-dt-min ", dt_min));
  }
  if (!part_multipliers.empty() && part_multipliers.size() != 5) {
    out.push_back(concat("--mamba-part-multipliers: ", part_multipliers.size(),
                         " numbers; give five, of z, x, B, C and dt"));
  }
  return out;
}

}  // namespace bev
