#include "models/decoder.h"

#include <algorithm>

#include "autograd/offload.h"
#include "autograd/recompute.h"
#include "base/error.h"
#include "data/batch_file.h"
#include "kernels/rope.h"
#include "nn/linear.h"
#include "ops/collective.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"

namespace bev {

LayerSpec decoder_layer(const ModelConfig& config, std::int64_t number) {
  LayerSpec spec;
  spec.mixer = config.multi_latent_attention ? &kLatentAttentionMixer : &kAttentionMixer;
  spec.feed_forward =
      config.has_experts(number) ? FeedForwardKind::kExperts : FeedForwardKind::kDense;
  spec.norms = config.norm_placement;
  spec.input_norm = config.encoder.first_norm || number > 0;
  spec.parallel_residual = config.parallel_residual;
  spec.residual_multiplier = config.residual_multiplier;
  bool windowed = config.windowed(number);
  spec.attention = {.scale = config.attention_scale(),
                    .softcap = config.attn_logit_softcapping,
                    .window = windowed ? config.window_size : -1,
                    .chunked = config.chunked(number),
                    .causal = config.causal,
                    .dropout = config.attention_dropout,
                    .sink = config.softmax_type};
  if (config.scale_by_inverse_layer) spec.attention.scale /= static_cast<double>(number + 1);
  spec.scaled_queries = config.scales_queries(number);
  if (config.rotates(number)) {
    bool local = windowed && config.rotary_base_local > 0;
    spec.rope = local ? RopeKind::kLocal : RopeKind::kGlobal;
  }
  return spec;
}

std::vector<LayerSpec> decoder_layers(const ModelConfig& config) {
  std::vector<LayerSpec> layers;
  for (std::int64_t number = 0; number < config.num_layers; ++number) {
    layers.push_back(decoder_layer(config, number));
  }
  return layers;
}

std::string_view name_of(FeedForwardKind kind) {
  return kind == FeedForwardKind::kNone ? "none" : kind == FeedForwardKind::kDense ? "mlp" : "moe";
}

namespace {
std::vector<FieldId> label_fields(LabelKind kind) {
  switch (kind) {
    case LabelKind::kNone:
      return {};
    case LabelKind::kTokens:
      return {kLabels};
    case LabelKind::kSpans:
      return {kStartPositions, kEndPositions};
    case LabelKind::kSequence:
      break;
  }
  return {kClassLabels};
}

std::vector<FieldId> decoder_fields(const ModelConfig& config) {
  const EncoderConfig& encoder = config.encoder;
  if (!encoder.encoder) return {kInputIds, kLabels, kAttentionMask};
  std::vector<FieldId> fields = {kInputIds, kAttentionMask};
  if (encoder.token_types > 0) fields.push_back(kTokenTypeIds);
  if (encoder.language_head) fields.push_back(kLabels);
  if (encoder.next_sentence) fields.push_back(kNextSentenceLabel);
  for (FieldId field : label_fields(encoder.labels)) fields.push_back(field);
  return fields;
}

bool has_tied_head(const ModelConfig& config, const StageRange& range) {
  return range.last && config.has_output_layer() && !config.untie_embeddings_and_output_weights;
}
}  // namespace

constinit const Architecture kDecoderArchitecture = {
    .name = "decoder",
    .layers = decoder_layers,
    .uses_embedding =
        [](const ModelConfig& config, const StageRange& range) {
          return range.first || has_tied_head(config, range) || range.depths(config).size() > 0;
        },
    .make_stage = [](const ModelConfig& config, const StageRange& range,
                     const BuildOptions& options, Param* embedding) -> std::unique_ptr<ModelStage> {
      return std::make_unique<Decoder>(config, range, options, embedding);
    },
    .fields = decoder_fields};

Decoder::Decoder(const ModelConfig& config, const StageRange& range, const BuildOptions& options,
                 Param* embedding)
    : ModelStage(config, range),
      options_(options),
      word_embeddings_(config, range, options, embedding) {
  if (range.first) add_tables();
  if (config.position_embedding_type == PositionKind::kRope && !rope_depends_on_length(config)) {
    rope_ = rope_frequencies(config, false, 0);
    if (config.rotary_base_local > 0) rope_local_ = rope_frequencies(config, true, 0);
  }
  std::vector<LayerSpec> specs = layer_specs(config);
  for (std::int64_t number = range.first_layer; number < range.end_layer; ++number) {
    const LayerSpec& spec = specs.at(static_cast<std::size_t>(number));
    layers_.push_back(std::make_unique<DecoderLayer>(config, spec, number, options,
                                                     concat("decoder.layers.", number)));
  }
  const Range depths = range.depths(config);
  if (config.has_final_norm() && range.first_depth == 0 && (range.last || depths.size() > 0)) {
    final_norm_ = make_norm("decoder.final_layernorm", config.hidden_size, norm_options(config));
  }
  for (std::int64_t depth = depths.begin; depth < depths.end; ++depth) {
    word_embeddings_.add_uses(1);
    mtp_.push_back(std::make_unique<MtpLayer>(config, depth, options));
  }
  if (range.last) add_head();
}

void Decoder::add_tables() {
  word_embeddings_.add_uses(1);
  const EncoderConfig& encoder = config().encoder;
  if (config().position_embedding_type == PositionKind::kLearned) {
    position_embeddings_ = embedding_param(
        "embedding.position_embeddings.weight",
        config().max_position_embeddings + encoder.position_offset, config(), false);
  }
  if (encoder.token_types > 0) {
    token_types_ = embedding_param("embedding.token_type_embeddings.weight", encoder.token_types,
                                   config(), false);
  }
  if (encoder.embedding_norm) {
    embedding_norm_ =
        make_norm("embedding.layernorm", config().hidden_size, norm_options(config()));
  }
}

void Decoder::add_head() {
  if (config().encoder.encoder) {
    encoder_heads_.emplace(config());
  } else if (config().num_labels > 0) {
    label_head_ = whole_linear({.name = "score",
                                .out = config().num_labels,
                                .in = config().hidden_size,
                                .std = config().init_method_std})
                      .weight;
  }
  if (config().has_output_layer()) add_output_layer();
}

void Decoder::add_output_layer() {
  if (config().add_head_bias) {
    output_bias_.emplace();
    output_bias_->name = "output_layer.bias";
    output_bias_->shape = {config().vocab_size};
    output_bias_->split = {Axis::kTp, 0, {}};
    output_bias_->init = {InitKind::kConstant, 0};
    output_bias_->wd_mult = 0;
  }
  // Each MTP module uses the head once more.
  auto uses = static_cast<int>(1 + config().mtp_num_layers);
  if (config().untie_embeddings_and_output_weights) {
    output_weight_ = embedding_param("output_layer.weight", config().vocab_size, config(), true);
    output_weight_->uses = uses;
    head_weight_ = &*output_weight_;
  } else {
    word_embeddings_.add_uses(uses);
    head_weight_ = word_embeddings_.get();
  }
}

std::vector<Param*> Decoder::params() {
  std::vector<Param*> list;
  word_embeddings_.params(list);
  if (token_types_) list.push_back(&*token_types_);
  if (position_embeddings_) list.push_back(&*position_embeddings_);
  if (embedding_norm_) embedding_norm_->params(list);
  for (auto& layer : layers_) layer->params(list);
  if (final_norm_) final_norm_->params(list);
  if (encoder_heads_) encoder_heads_->params(list);
  if (output_weight_) list.push_back(&*output_weight_);
  if (output_bias_) list.push_back(&*output_bias_);
  if (label_head_) list.push_back(&*label_head_);
  for (auto& depth : mtp_) depth->params(list);
  return list;
}

namespace {
// Boundary tensor with the hidden states of one MTP module.
BoundaryId mtp_states(std::int64_t depth) { return {"MTP hidden states", depth}; }
}  // namespace

Boundary Decoder::boundary(const Context& ctx, const MicroBatch& batch, std::int64_t depths) const {
  auto tensor = [&](BoundaryId id) {
    return token_boundary(ctx, id, batch.layout, config().hidden_size, options_.tensor_parallel);
  };
  Boundary tensors = {tensor(kHiddenStates)};
  for (std::int64_t depth = 1; depth <= depths; ++depth)
    tensors.push_back(tensor(mtp_states(depth)));
  return tensors;
}

Boundary Decoder::boundary_in(const Context& ctx, const MicroBatch& batch, bool training) const {
  if (range().first) return {};
  return boundary(ctx, batch, training ? range().first_depth : 0);
}

Boundary Decoder::boundary_out(const Context& ctx, const MicroBatch& batch, bool training) const {
  return boundary(ctx, batch, training ? range().depths(config()).end : 0);
}

// Each sequence uses the RoPE frequencies of its own length, independent of the rest of the batch.
Tensor Decoder::rope_rows(Context& ctx, const SequenceLayout& layout, bool local) const {
  auto table = [&](const Tensor& positions, const RopeFrequencies& rope) {
    return rope_table(ctx, positions, rope.frequencies, rope.scale);
  };
  if (!rope_depends_on_length(config()))
    return table(layout.positions, local ? rope_local_ : rope_);
  Tensor rows = ctx.allocate(ctx.wide(), {layout.tokens, rotary_dims(config())}, "layout");
  for (const SequenceRows& sequence : layout.sequences) {
    Tensor part = table(layout.positions.rows(sequence.begin, sequence.end),
                        rope_frequencies(config(), local, sequence.length));
    ctx.kernels.cast(ctx.stream, part, rows.view().rows(sequence.begin, sequence.end));
  }
  return rows;
}

LayerInput Decoder::layer_input(Context& ctx, const SequenceLayout& layout) const {
  LayerInput input;
  input.layout = &layout;
  if (const QueryScaling& scaling = config().rope_scaling.queries; scaling.beta != 0) {
    input.query_scale = position_scale_table(
        ctx, layout.positions, {scaling.beta, scaling.period, scaling.shift}, config().head_size());
  }
  if (config().position_embedding_type != PositionKind::kRope) return input;
  input.rope = rope_rows(ctx, layout, false);
  if (config().rotary_base_local > 0) input.rope_local = rope_rows(ctx, layout, true);
  return input;
}

Var Decoder::embed(Context& ctx, const MicroBatch& batch) const {
  ctx.layer = -1;
  const std::int64_t most = config().longest_sequence();
  BEV_CHECK(most == 0 || batch.layout.max_length <= most, ErrorKind::kInput, "a sequence of ",
            batch.layout.max_length, " tokens is longer than the ", most, " ",
            config().longest_sequence_reason());
  Var x = word_embeddings_.look_up(ctx, batch.tokens);
  if (token_types_) {
    const BatchField* types = batch.find(kTokenTypeIds);
    x = add_token_types(ctx, x, batch.layout, types != nullptr ? types->tensor : Tensor(),
                        *token_types_);
  }
  if (position_embeddings_) {
    x = add_positions(ctx, x, batch.layout, *position_embeddings_,
                      config().encoder.position_offset);
  }
  if (embedding_norm_) x = norm(ctx, x, embedding_norm_->spec(false));
  return dropout(ctx, x, config().hidden_dropout, batch.layout, RandomUse::kEmbeddingDropout);
}

namespace {
// Runs layers of a stage; their saved activations may be offloaded to the host until the backward.
template <class Run>
Var run_at(Context& ctx, const LayerPlace& place, const Var& x, const Run& run) {
  OffloadPass* offload = ctx.tape != nullptr ? ctx.offload : nullptr;
  if (offload != nullptr) offload->begin_layer(ctx, place, x.tensor);
  Var y = run(x);
  if (offload != nullptr) offload->end_layer(ctx, y.tensor);
  return y;
}
}  // namespace

Var Decoder::run_layers(Context& ctx, Var x, const LayerInput& input) const {
  const RecomputePolicy& policy = options_.recompute;
  auto count = static_cast<std::int64_t>(layers_.size());
  std::int64_t full = policy.layers_per_unit == 0 ? 0
                      : policy.full_layers < 0    ? count
                                                  : std::min(policy.full_layers, count);
  auto place = [&](std::int64_t begin, std::int64_t end) {
    return LayerPlace{begin, count, range().last && end == count};
  };
  for (std::int64_t begin = 0; begin < full; begin += policy.layers_per_unit) {
    std::int64_t end = std::min(begin + policy.layers_per_unit, full);
    auto run = [this, begin, end, input](Context& to, const Var& from) {
      Var y = from;
      for (std::int64_t i = begin; i < end; ++i) {
        y = layers_[static_cast<std::size_t>(i)]->forward(to, y, input);
      }
      return y;
    };
    x = run_at(ctx, place(begin, end), x,
               [&](const Var& from) { return recompute(ctx, "recompute layers", from, run); });
  }
  for (std::int64_t i = full; i < count; ++i) {
    x = run_at(ctx, place(i, i + 1), x, [&](const Var& from) {
      return layers_[static_cast<std::size_t>(i)]->forward(ctx, from, input);
    });
  }
  ctx.layer = -1;
  return x;
}

void Decoder::forward(Context& ctx, const MicroBatch& batch, std::span<const Var> in,
                      std::vector<Var>& out) const {
  out.clear();
  Var x = range().first ? embed(ctx, batch) : in[0];
  if (!layers_.empty()) x = run_layers(ctx, std::move(x), layer_input(ctx, batch.layout));
  out.push_back(final_states(ctx, x));
  if (ctx.tape != nullptr) add_depths(ctx, batch, in, out);
}

void Decoder::add_depths(Context& ctx, const MicroBatch& batch, std::span<const Var> in,
                         std::vector<Var>& out) const {
  Range depths = range().depths(config());
  BEV_CHECK(std::ssize(batch.mtp) >= depths.end, ErrorKind::kInternal,
            "multi-token prediction: a batch with ", batch.mtp.size(), " depths of ", depths.end);
  for (std::int64_t depth = 0; depth < depths.begin; ++depth) {
    out.push_back(in[static_cast<std::size_t>(depth + 1)]);
  }
  if (depths.size() == 0) return;
  LayerInput input = layer_input(ctx, batch.layout);
  for (std::int64_t depth = depths.begin; depth < depths.end; ++depth) {
    Var before = out.back();
    // On the last stage, the gradient of the loss is added after that of the MTP module.
    if (range().last) out.back() = branch(ctx, before);
    out.push_back(predict(ctx, batch, depth, before, input));
  }
}

std::vector<StateSpec> Decoder::states(const Context& ctx) const {
  std::vector<StateSpec> list;
  for (const auto& layer : layers_) list.push_back(layer->mixer().state(ctx));
  return list;
}

Var Decoder::decode(Context& ctx, const MicroBatch& batch, const Var& in, const DecodeStep& step,
                    std::vector<LayerState>& states) const {
  Var x = range().first ? embed(ctx, batch) : in;
  LayerInput layer = layer_input(ctx, batch.layout);
  layer.decode = &step;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layer.state = &states[i];
    x = layers_[i]->forward(ctx, x, layer);
  }
  ctx.layer = -1;
  return x;
}

Var Decoder::predictions(Context& ctx, const Var& final) const {
  return encoder_heads_ ? encoder_heads_->transformed(ctx, final) : final;
}

HeadSpec Decoder::head() const {
  BEV_CHECK(head_weight_ != nullptr || !encoder_heads_, ErrorKind::kConfig,
            "the model is an encoder without an output layer, so it cannot predict tokens; read a "
            "folder with a masked language model (\"architectures\": [\"..ForMaskedLM\"])");
  BEV_CHECK(head_weight_ != nullptr, ErrorKind::kConfig,
            "--num-labels: the model scores sequences (", config().num_labels,
            " labels) and has no output layer, so it cannot predict tokens; ",
            "use `score`, or train it with --objective reward");
  return {.weight = head_weight_,
          .logit_scale = config().logit_factor(),
          .softcap = config().final_logit_softcapping,
          .bias = output_bias_ ? &*output_bias_ : nullptr};
}

Var Decoder::final_states(Context& ctx, const Var& hidden) const {
  return final_norm_ ? norm(ctx, hidden, final_norm_->spec(false)) : hidden;
}

Var Decoder::predict(Context& ctx, const MicroBatch& batch, std::int64_t depth, const Var& hidden,
                     const LayerInput& input) const {
  ctx.layer = config().num_layers + depth;
  const Tensor& tokens = batch.mtp[static_cast<std::size_t>(depth)].tokens;
  Var embedded = dropout(ctx, word_embeddings_.look_up(ctx, tokens), config().hidden_dropout,
                         batch.layout, RandomUse::kEmbeddingDropout);
  auto index = static_cast<std::size_t>(depth - range().first_depth);
  Var out = mtp_[index]->forward(ctx, hidden, embedded, input);
  ctx.layer = -1;
  return out;
}

}  // namespace bev
