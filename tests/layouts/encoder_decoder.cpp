// An encoder and a decoder with cross attention as pipeline stages that exchange two named tensors:
// the encoder's states go along through the stages of the decoder.
//
//   | embed  e  e | e  embed  d | d  d  head |      stage 0 -> 1: encoder states
//                                                  stage 1 -> 2: hidden states, encoder states
#include <memory>

#include "autograd/recompute.h"
#include "base/text.h"
#include "nn/mlp.h"
#include "ops/collective.h"
#include "ops/embedding.h"
#include "ops/sequence_gather.h"
#include "tests/layouts/slices.h"

namespace bev::test {
namespace {

constexpr BoundaryId kEncoderStates{"encoder states"};
constexpr double kStd = 0.2;

AttentionOptions attention_of(const ModelConfig& config, bool causal, const BuildOptions& build) {
  AttentionOptions options;
  options.hidden_size = config.hidden_size;
  options.heads = options.kv_heads = config.num_attention_heads;
  options.head_size = config.head_size();
  options.scale = config.attention_scale();
  options.causal = causal;
  options.init_std = options.proj_init_std = kStd;
  options.tensor_parallel = build.tensor_parallel;
  return options;
}

// A layer of either half; a decoder's has cross attention between self-attention and MLP.
struct Layer {
  Layer(const std::string& of, const ModelConfig& config, bool decodes, const BuildOptions& build)
      : name(of),
        options(attention_of(config, decodes, build)),
        hidden(config.hidden_size),
        recomputes(build.recompute.layers_per_unit > 0) {
    if (decodes) cross.emplace(name + ".cross", options);
  }
  void params(std::vector<Param*>& list) {
    before.params(list), attention.params(list), between.params(list), mlp.params(list);
    if (!cross) return;
    cross_norm.params(list), q.params(list), kv.params(list), proj.params(list);
  }
  template <class F>
  Var run(Context& ctx, const Var& x, F f) const {
    return recomputes ? recompute(ctx, "recompute part", x, f) : f(ctx, x);
  }
  Var attend_across(Context& ctx, const Var& x, const SequenceLayout& to, const Var& states,
                    const SequenceLayout& from) const {
    const TensorParallel& tp = options.tensor_parallel;
    Var queries = q.enter(ctx, norm(ctx, x, cross_norm.spec(false)), to.tokens, tp);
    Var keys = kv.enter(ctx, states, from.tokens, tp);
    std::vector<AttentionRun> runs =
        visible_runs(whole_sequence(to), 0, whole_sequence(from), 0, false, -1);
    Var heads = cross_attention(ctx, gather_sequence(ctx, queries, to),
                                gather_sequence(ctx, keys, from), std::move(runs),
                                cross->spec(ctx));
    return add(ctx, x, proj.leave(ctx, own_sequence(ctx, heads, to), tp));
  }
  // `states`: the encoder's, for a layer of the decoder.
  Var forward(Context& ctx, const Var& x, const SequenceLayout& layout, const Var* states,
              const SequenceLayout& source) const {
    Var y = run(ctx, x, [this, input = LayerInput{.layout = &layout}](Context& to, const Var& in) {
      return add(to, in, attention.forward(to, norm(to, in, before.spec(false)), input));
    });
    if (states != nullptr) y = attend_across(ctx, y, layout, *states, source);
    return run(ctx, y, [this, tokens = layout.tokens](Context& to, const Var& in) {
      return add(to, in, mlp.forward(to, norm(to, in, between.spec(false)), tokens));
    });
  }

  std::string name;
  AttentionOptions options;
  std::int64_t hidden;
  bool recomputes;
  Norm before = make_norm(name + ".before", hidden, {}), between = make_norm(name + ".between", hidden, {}),
       cross_norm = make_norm(name + ".cross_norm", hidden, {});
  SelfAttention attention{name + ".attention", options};
  Mlp mlp{name + ".mlp", {.hidden_size = hidden, .ffn_size = 2 * hidden, .init_std = kStd,
                          .down_init_std = kStd, .tensor_parallel = options.tensor_parallel}};
  std::optional<CoreAttention> cross;
  Linear q = column_linear({name + ".q", hidden, hidden, false, kStd}, {});
  Linear kv = column_linear({name + ".kv", 2 * hidden, hidden, false, kStd}, {hidden, hidden});
  Linear proj = row_linear({name + ".proj", hidden, hidden, false, kStd});
};

bool uses_embedding(const ModelConfig& config, const StageRange& range) {
  std::int64_t decoder = config.num_layers / 2;
  return range.first || range.last || (range.first_layer <= decoder && decoder < range.end_layer);
}

class EncoderDecoder final : public ModelStage {
 public:
  EncoderDecoder(const ModelConfig& config, const StageRange& range, const BuildOptions& build,
                 Param* embedding)
      : ModelStage(config, range), build_(build), embedding_(embedding) {
    if (embedding_ == nullptr && uses_embedding(config, range)) {
      own_ = Param{.name = "embedding", .shape = {config.vocab_size, config.hidden_size},
                   .split = {Axis::kTp, 0, {}}, .init = {InitKind::kNormal, kStd},
                   .shared = build.shared_embedding, .copy = !range.first, .uses = 0};
      embedding_ = &*own_;
    }
    embeds_target_ = range.first_layer <= decoder() && decoder() < range.end_layer;
    if (embedding_ != nullptr) embedding_->uses += range.first + range.last + embeds_target_;
    for (std::int64_t n = range.first_layer; n < range.end_layer; ++n) {
      layers_.push_back(std::make_unique<Layer>(concat("layers.", n), config, n >= decoder(), build));
    }
    if (embeds_target_) encoder_norm_ = make_norm("encoder_norm", config.hidden_size, {});
    if (range.last) final_norm_ = make_norm("final_norm", config.hidden_size, {});
  }
  Param* embedding() const override { return embedding_; }
  HeadSpec head() const override { return {.weight = embedding_}; }
  std::vector<Param*> params() override {
    std::vector<Param*> list;
    if (own_) list.push_back(&*own_);
    for (auto& layer : layers_) layer->params(list);
    for (auto* norm : {&encoder_norm_, &final_norm_}) {
      if (*norm) (*norm)->params(list);
    }
    return list;
  }
  std::vector<BoundaryTensor> boundary_in(const Context& ctx, const MicroBatch& batch,
                                          bool) const override {
    return boundary(ctx, batch, range().first_layer);
  }
  std::vector<BoundaryTensor> boundary_out(const Context& ctx, const MicroBatch& batch,
                                           bool) const override {
    return boundary(ctx, batch, range().end_layer);
  }
  void forward(Context& ctx, const MicroBatch& batch, std::span<const Var> in,
               std::vector<Var>& out) const override {
    const BatchField& source = batch.field(kSourceTokens);
    bool decoding = range().first_layer > decoder();
    Var states = range().first ? embed(ctx, source.tensor) : in[decoding ? 1 : 0], hidden;
    if (decoding) hidden = in[0];
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      std::int64_t number = ctx.layer = range().first_layer + static_cast<std::int64_t>(i);
      if (number == decoder()) {
        states = norm(ctx, states, encoder_norm_->spec(false));
        hidden = embed(ctx, batch.tokens);
      }
      bool encodes = number < decoder();
      Var& x = encodes ? states : hidden;
      x = layers_[i]->forward(ctx, x, encodes ? source.layout : batch.layout,
                              encodes ? nullptr : &states, source.layout);
    }
    out.clear();
    if (range().end_layer > decoder()) out.push_back(final_states(ctx, hidden));
    if (!range().last) out.push_back(states);
  }
  Var final_states(Context& ctx, const Var& hidden) const override {
    return final_norm_ ? norm(ctx, hidden, final_norm_->spec(false)) : hidden;
  }
  std::vector<StateSpec> states(std::int64_t) const override { return {}; }
  Var decode(Context&, const MicroBatch&, const Var&, const DecodeStep&,
             std::vector<LayerState>&) const override {
    return {};
  }

 private:
  std::int64_t decoder() const { return config().num_layers / 2; }
  Var embed(Context& ctx, const Tensor& tokens) const {
    Var x = bev::embedding(ctx, tokens, *embedding_, {}, batch_placement());
    return leave_tensor_parallel(ctx, x, build_.tensor_parallel.sequence_parallel);
  }
  std::vector<BoundaryTensor> boundary(const Context& ctx, const MicroBatch& batch,
                                       std::int64_t layer) const {
    auto tensor = [&](BoundaryId id, const SequenceLayout& layout) -> BoundaryTensor {
      bool split = build_.tensor_parallel.sequence_parallel;
      Placement placement = batch_placement().with(
          Axis::kTp, split ? PlaceState::kShard0 : PlaceState::kReplicated);
      return {id, {token_rows(ctx, layout, placement).size(), config().hidden_size}, placement};
    };
    std::vector<BoundaryTensor> list;
    if (layer > decoder()) list.push_back(tensor(kHiddenStates, batch.layout));
    if (layer < config().num_layers) {
      list.push_back(tensor(kEncoderStates, batch.field(kSourceTokens).layout));
    }
    return list;
  }

  BuildOptions build_;
  std::optional<Param> own_;
  Param* embedding_;
  bool embeds_target_ = false;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::optional<Norm> encoder_norm_, final_norm_;
};

const Architecture kEncoderDecoder = {
    .name = "encoder-decoder",
    .layers = decoder_layers,
    .uses_embedding = uses_embedding,
    .make_stage = [](const ModelConfig& config, const StageRange& range, const BuildOptions& build,
                     Param* embedding) -> std::unique_ptr<ModelStage> {
      return std::make_unique<EncoderDecoder>(config, range, build, embedding);
    }};

}  // namespace

const Architecture* encoder_decoder_architecture() { return &kEncoderDecoder; }

}  // namespace bev::test
