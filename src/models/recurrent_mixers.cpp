// Mamba-2, alone and in parallel with attention, as mixers of a layer.
#include "models/layer.h"
#include "nn/mamba.h"
#include "ops/elementwise.h"

namespace bev {

namespace {

MambaOptions mamba_options(const ModelConfig& config, const BuildOptions& build) {
  const MambaConfig& mamba = config.mamba;
  MambaOptions o;
  o.hidden_size = config.hidden_size;
  o.heads = mamba.heads(config.hidden_size);
  o.head_size = mamba.head_dim;
  o.state_size = mamba.state_dim;
  o.groups = mamba.num_groups;
  o.conv_width = mamba.conv_kernel;
  o.conv_bias = mamba.conv_bias;
  o.in_bias = mamba.in_bias;
  o.out_bias = mamba.out_bias;
  o.norm = mamba.norm;
  o.norm_before_gate = mamba.norm_before_gate;
  o.epsilon = config.norm_epsilon;
  o.dt_min = mamba.dt_min;
  o.dt_max = mamba.dt_max;
  o.in_multiplier = mamba.in_multiplier;
  o.out_multiplier = mamba.out_multiplier;
  o.part_multipliers = mamba.part_multipliers;
  o.init_std = config.init_method_std;
  o.out_init_std = output_std(config);
  o.tensor_parallel = build.tensor_parallel;
  return o;
}

// Both mixers read the same input; their outputs are added.
class ParallelMixer final : public Mixer {
 public:
  ParallelMixer(std::unique_ptr<Mixer> attention, const std::string& name,
                const ModelConfig& config, const BuildOptions& build)
      : attention_(std::move(attention)),
        mamba_(name + ".mamba", mamba_options(config, build)),
        in_multiplier_(config.mamba.attention_in_multiplier),
        out_multiplier_(config.mamba.attention_out_multiplier) {}

  void params(std::vector<Param*>& list) override {
    mamba_.params(list);
    attention_->params(list);
  }
  void linears(std::vector<Linear*>& list) override {
    mamba_.linears(list);
    attention_->linears(list);
  }
  StateSpec state(const Context& ctx) const override {
    StateSpec spec = attention_->state(ctx);
    spec.sequence_elements = mamba_.state(ctx).sequence_elements;
    return spec;
  }
  Var forward(Context& ctx, const Var& x, const LayerInput& input) const override {
    Var scanned = mamba_.forward(ctx, x, input);
    Var in = in_multiplier_ != 1 ? scaled(ctx, x, in_multiplier_) : x;
    Var attended = attention_->forward(ctx, in, input);
    if (out_multiplier_ != 1) attended = scaled(ctx, attended, out_multiplier_);
    return add(ctx, scanned, attended);
  }

 private:
  std::unique_ptr<Mixer> attention_;
  MambaMixer mamba_;
  double in_multiplier_, out_multiplier_;
};

// Projections, convolution, and of the recurrence as it is computed, in chunks of Q tokens: forward
// 2 Q P + 4 N P for each head and 2 Q N for each group.
MixerFlops mamba_flops(const ModelConfig& config, const LayerSpec&) {
  const MambaOptions o = mamba_options(config, {});
  auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const double columns = number(2 * o.width() + 2 * o.group_columns() + o.heads);
  const double projections = 2 * number(o.hidden_size) * (columns + number(o.width()));
  const double conv = 2 * number(o.conv_width * (o.width() + 2 * o.group_columns()));
  const double head = number(2 * o.chunk * o.head_size + 4 * o.state_size * o.head_size);
  return {projections + conv + number(o.heads) * head + 2 * number(o.chunk * o.group_columns()), 0};
}

MixerFlops parallel_flops(const ModelConfig& config, const LayerSpec& spec) {
  MixerFlops both = kAttentionMixer.flops(config, spec);
  both.per_token += mamba_flops(config, spec).per_token;
  return both;
}

}  // namespace

constinit const MixerType kMambaMixer = {
    .name = "mamba2",
    .module = "mixer",
    .make = [](const std::string& name, const ModelConfig& config, const LayerSpec&, std::int64_t,
               const BuildOptions& build) -> std::unique_ptr<Mixer> {
      return std::make_unique<MambaMixer>(name, mamba_options(config, build));
    },
    .flops = mamba_flops,
    .recurrent = true};

constinit const MixerType kParallelMambaMixer = {
    .name = "mamba2 + attention",
    .module = "mixer",
    .make = [](const std::string& name, const ModelConfig& config, const LayerSpec& spec,
               std::int64_t number, const BuildOptions& build) -> std::unique_ptr<Mixer> {
      return std::make_unique<ParallelMixer>(
          kAttentionMixer.make(name + ".attention", config, spec, number, build), name, config,
          build);
    },
    .flops = parallel_flops,
    .recurrent = true};

}  // namespace bev
