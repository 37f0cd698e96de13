// Encoder-decoder with cross attention: the encoder states are passed along through the stages.
//
//   | embed  e  e | e  embed  d | d  d  head |      stage 0 -> 1: encoder states
//                                                  stage 1 -> 2: hidden states, encoder states
#include "autograd/recompute.h"
#include "base/text.h"
#include "models/word_embeddings.h"
#include "nn/cross_attention.h"
#include "nn/mlp.h"
#include "tests/layouts/slices.h"

namespace bev::test {
namespace {

constexpr BoundaryId kEncoderStates{"encoder states"};

AttentionOptions attention_of(const ModelConfig& config, bool causal, const BuildOptions& build) {
  return {.hidden_size = config.hidden_size,
          .heads = config.num_attention_heads,
          .kv_heads = config.num_attention_heads,
          .head_size = config.head_size(),
          .rule = {.scale = config.attention_scale(), .causal = causal},
          .tensor_parallel = build.tensor_parallel};
}

struct Layer {
  Layer(const std::string& name, const ModelConfig& config, bool decodes, const BuildOptions& build)
      : recomputes(build.recompute.layers_per_unit > 0),
        attention(name + ".attention", attention_of(config, decodes, build)),
        mlp(name + ".mlp", {.hidden_size = config.hidden_size,
                            .ffn_size = config.ffn_size(),
                            .tensor_parallel = build.tensor_parallel}) {
    for (Norm& norm : norms) {
      norm = make_norm(concat(name, ".norm", &norm - norms), config.hidden_size, {});
    }
    if (decodes) cross.emplace(name + ".cross", attention_of(config, false, build));
  }
  void params(std::vector<Param*>& list) {
    norms[0].params(list), attention.params(list), norms[1].params(list), mlp.params(list);
    if (cross) norms[2].params(list), cross->params(list);
  }
  Var forward(Context& ctx, const Var& x, const SequenceLayout& layout,
              const CrossInput& to) const {
    auto attend = [this, input = LayerInput{.layout = &layout}](Context& on, const Var& in) {
      return add(on, in, attention.forward(on, norm(on, in, norms[0].spec(false)), input));
    };
    auto feed = [this, tokens = layout.tokens](Context& on, const Var& in) {
      return add(on, in, mlp.forward(on, norm(on, in, norms[1].spec(false)), tokens));
    };
    Var y = recomputes ? recompute(ctx, "recompute attention", x, attend) : attend(ctx, x);
    if (cross) y = add(ctx, y, cross->forward(ctx, norm(ctx, y, norms[2].spec(false)), layout, to));
    return recomputes ? recompute(ctx, "recompute mlp", y, feed) : feed(ctx, y);
  }

  bool recomputes;
  Norm norms[3];
  SelfAttention attention;
  Mlp mlp;
  std::optional<CrossAttention> cross;
};

std::int64_t first_decoder(const ModelConfig& config) { return config.num_layers / 2; }
// Lookups of both sequences and the output layer.
int embedding_uses(const ModelConfig& config, const StageRange& range) {
  std::int64_t first = first_decoder(config);
  return range.first + range.last + (range.first_layer <= first && first < range.end_layer);
}

class EncoderDecoder final : public ModelStage {
 public:
  EncoderDecoder(const ModelConfig& config, const StageRange& range, const BuildOptions& build,
                 Param* embedding)
      : ModelStage(config, range),
        tp_(build.tensor_parallel),
        words_(config, range, build, embedding) {
    words_.add_uses(embedding_uses(config, range));
    for (std::int64_t n = range.first_layer; n < range.end_layer; ++n) {
      bool decodes = n >= first_decoder(config);
      layers_.push_back(std::make_unique<Layer>(concat("layers.", n), config, decodes, build));
    }
    if (range.last) final_norm_ = make_norm("final_norm", config.hidden_size, {});
  }
  Param* embedding() const override { return words_.get(); }
  HeadSpec head() const override { return {.weight = words_.get()}; }
  std::vector<Param*> params() override {
    std::vector<Param*> list;
    words_.params(list);
    for (auto& layer : layers_) layer->params(list);
    if (final_norm_) final_norm_->params(list);
    return list;
  }
  Boundary boundary_in(const Context& ctx, const MicroBatch& batch, bool) const override {
    return boundary(ctx, batch, range().first_layer);
  }
  Boundary boundary_out(const Context& ctx, const MicroBatch& batch, bool) const override {
    return boundary(ctx, batch, range().end_layer);
  }
  void forward(Context& ctx, const MicroBatch& batch, std::span<const Var> in,
               std::vector<Var>& out) const override {
    const BatchField& source = batch.field(kSourceTokens);
    Var states = range().first ? words_.look_up(ctx, source.tensor) : in.back(), hidden;
    if (in.size() > 1) hidden = in[0];
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      ctx.layer = range().first_layer + static_cast<std::int64_t>(i);
      if (ctx.layer == first_decoder(config())) hidden = words_.look_up(ctx, batch.tokens);
      bool encodes = ctx.layer < first_decoder(config());
      Var& x = encodes ? states : hidden;
      const SequenceLayout& layout = encodes ? source.layout : batch.layout;
      x = layers_[i]->forward(ctx, x, layout, {states, source.layout});
    }
    out.clear();
    if (final_norm_) hidden = norm(ctx, hidden, final_norm_->spec(false));
    if (range().end_layer > first_decoder(config())) out.push_back(hidden);
    if (!range().last) out.push_back(states);
  }

 private:
  Boundary boundary(const Context& ctx, const MicroBatch& batch, std::int64_t layer) const {
    Boundary list;
    auto add = [&](BoundaryId id, const SequenceLayout& layout) {
      list.push_back(token_boundary(ctx, id, layout, config().hidden_size, tp_));
    };
    if (layer > first_decoder(config())) add(kHiddenStates, batch.layout);
    if (layer < config().num_layers) add(kEncoderStates, batch.field(kSourceTokens).layout);
    return list;
  }

  TensorParallel tp_;
  WordEmbeddings words_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::optional<Norm> final_norm_;
};

const Architecture kEncoderDecoder = {
    .name = "encoder-decoder",
    .layers = decoder_layers,
    .uses_embedding = [](const ModelConfig& config,
                         const StageRange& range) { return embedding_uses(config, range) > 0; },
    .make_stage = [](const ModelConfig& config, const StageRange& range, const BuildOptions& build,
                     Param* embedding) -> std::unique_ptr<ModelStage> {
      return std::make_unique<EncoderDecoder>(config, range, build, embedding);
    }};

}  // namespace

const Architecture* encoder_decoder_architecture() { return &kEncoderDecoder; }

}  // namespace bev::test
