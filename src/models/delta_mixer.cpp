// The gated delta rule as the mixer of a layer.
#include "models/layer.h"
#include "nn/gated_delta_net.h"

namespace bev {

namespace {

GatedDeltaOptions delta_options(const ModelConfig& config, const BuildOptions& build) {
  GatedDeltaOptions o;
  o.hidden_size = config.hidden_size;
  o.key_heads = config.delta.num_key_heads;
  o.value_heads = config.delta.num_value_heads;
  o.key_size = config.delta.key_head_dim;
  o.value_size = config.delta.value_head_dim;
  o.conv_width = config.delta.conv_kernel;
  o.epsilon = config.norm_epsilon;
  o.init_std = config.init_method_std;
  o.out_init_std = output_std(config);
  o.tensor_parallel = build.tensor_parallel;
  return o;
}

// Projections, convolution, and of the recurrence as it is computed, in chunks of Q tokens: for
// each value head 2 Q (3 K + 2 V) + 6 K V + 2 Q^2 / 3.
MixerFlops delta_flops(const ModelConfig& config, const LayerSpec&) {
  const GatedDeltaOptions o = delta_options(config, {});
  auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const std::int64_t rows = o.conv_columns() + o.value_columns() + 2 * o.value_heads;
  const double projections = 2 * number(o.hidden_size) * number(rows + o.value_columns());
  const double conv = 2 * number(o.conv_width * o.conv_columns());
  const double chunk = number(o.chunk), keys = number(o.key_size), values = number(o.value_size);
  const double head =
      2 * chunk * (3 * keys + 2 * values) + 6 * keys * values + 2 * chunk * chunk / 3;
  return {projections + conv + number(o.value_heads) * head, 0};
}

}  // namespace

constinit const MixerType kGatedDeltaMixer = {
    .name = "gated delta rule",
    .module = "self_attention",
    .make = [](const std::string& name, const ModelConfig& config, const LayerSpec&, std::int64_t,
               const BuildOptions& build) -> std::unique_ptr<Mixer> {
      return std::make_unique<GatedDeltaNet>(name, delta_options(config, build));
    },
    .flops = delta_flops,
    .recurrent = true};

}  // namespace bev
