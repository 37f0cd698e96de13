#include "tests/support/watched_model.h"

#include "kernels/optim.h"

namespace bev::test {
namespace {

class WatchedMixer final : public Mixer {
 public:
  explicit WatchedMixer(std::unique_ptr<Mixer> mixer) : mixer_(std::move(mixer)) {}
  void params(std::vector<Param*>& list) override { mixer_->params(list); }
  void linears(std::vector<Linear*>& list) override { mixer_->linears(list); }
  StateSpec state(const Context& ctx) const override { return mixer_->state(ctx); }
  Var forward(Context& ctx, const Var& x, const LayerInput& input) const override {
    if (double* squares = ctx.metric("mixer input norm", x.placement)) {
      ctx.kernels.optim.sum_squares(ctx.stream, {&x.tensor.view(), 1}, squares);
    }
    return mixer_->forward(ctx, x, input);
  }

 private:
  std::unique_ptr<Mixer> mixer_;
};

const MixerType kWatchedMixer = {
    .name = "watched attention",
    .module = "watched_attention",
    .make = [](const std::string& name, const ModelConfig& config, const LayerSpec& spec,
               std::int64_t number, const BuildOptions& options) -> std::unique_ptr<Mixer> {
      return std::make_unique<WatchedMixer>(
          kAttentionMixer.make(name, config, spec, number, options));
    },
    .flops = [](const ModelConfig& config,
                const LayerSpec& spec) { return kAttentionMixer.flops(config, spec); }};

class WatchedObjective final : public Objective {
 public:
  std::vector<std::string> terms() const override { return plain().terms(); }
  void add_weights(const Context& ctx, const MicroBatch& batch,
                   std::span<double> weights) const override {
    plain().add_weights(ctx, batch, weights);
  }
  Var loss(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
           std::span<const Var> outputs, double* sums) const override {
    if (double* count = ctx.metric("masked tokens", batch_placement())) {
      ctx.kernels.optim.count_zeros(ctx.stream, {&batch.targets.weights.view(), 1}, count);
    }
    return plain().loss(ctx, stage, batch, outputs, sums);
  }

 private:
  static NextToken plain() { return NextToken(ModelConfig()); }
};

}  // namespace

const Architecture* watched_architecture() {
  static const Architecture watched = [] {
    Architecture out = kDecoderArchitecture;
    out.name = "watched";
    out.layers = [](const ModelConfig& config) {
      std::vector<LayerSpec> layers = decoder_layers(config);
      for (LayerSpec& layer : layers) layer.mixer = &kWatchedMixer;
      return layers;
    };
    return out;
  }();
  return &watched;
}

MetricSpec mixer_input_norm() {
  return {"mixer input norm", MetricStyle::kNumber, MetricForm::kNorm};
}

const Objective& watched_objective() {
  static const WatchedObjective watched;
  return watched;
}

MetricSpec masked_tokens() { return {"masked tokens"}; }

}  // namespace bev::test
