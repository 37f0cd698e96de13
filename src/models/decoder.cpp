#include "models/decoder.h"

#include <algorithm>

#include "autograd/recompute.h"
#include "base/error.h"
#include "ops/collective.h"
#include "ops/embedding.h"

namespace bev {

namespace {

Param table_param(const char* name, std::int64_t rows, std::int64_t columns, double std,
                  bool split) {
  Param param;
  param.name = name;
  param.shape = {rows, columns};
  if (split) param.split = {Axis::kTp, 0, {}};
  param.init = {InitKind::kNormal, std};
  return param;
}

}  // namespace

StageRange even_stage(std::int64_t layers, std::int64_t stages, std::int64_t stage) {
  Range range = shard_range(layers, stages, stage);
  return {range.begin, range.end, stage == 0, stage == stages - 1};
}

Decoder::Decoder(const ModelConfig& config, const StageRange& range, const BuildOptions& options,
                 Decoder* embedding_stage)
    : config_(config), range_(range), options_(options) {
  bool tied = !config.untie_embeddings_and_output_weights;
  auto word_embeddings = [&] {
    return table_param("embedding.word_embeddings.weight", config.vocab_size, config.hidden_size,
                       config.init_method_std, true);
  };
  if (range.first) {
    word_embeddings_ = word_embeddings();
    word_embeddings_->shared = tied;
    if (config.position_embedding_type == PositionKind::kLearned) {
      position_embeddings_ =
          table_param("embedding.position_embeddings.weight", config.max_position_embeddings,
                      config.hidden_size, config.init_method_std, false);
    }
  }
  if (config.position_embedding_type == PositionKind::kRope && !rope_depends_on_length(config)) {
    rope_ = rope_frequencies(config, false, 0);
    if (config.rotary_base_local > 0) rope_local_ = rope_frequencies(config, true, 0);
  }
  for (std::int64_t number = range.first_layer; number < range.end_layer; ++number) {
    layers_.push_back(std::make_unique<DecoderLayer>(config, number, options));
  }
  if (!range.last) return;
  final_norm_ = make_norm("decoder.final_layernorm", config.hidden_size, norm_options(config));
  if (!tied) {
    output_weight_ = table_param("output_layer.weight", config.vocab_size, config.hidden_size,
                                 config.init_method_std, true);
  } else if (range.first || embedding_stage != nullptr) {
    Param& table = *(range.first ? this : embedding_stage)->word_embeddings_;
    table.shared = false;
    table.uses = 2;
    head_weight_ = &table;
  } else {
    output_weight_ = word_embeddings();
    output_weight_->shared = output_weight_->copy = true;
  }
  if (output_weight_) head_weight_ = &*output_weight_;
}

std::vector<Param*> Decoder::params() {
  std::vector<Param*> list;
  if (word_embeddings_) list.push_back(&*word_embeddings_);
  if (position_embeddings_) list.push_back(&*position_embeddings_);
  for (auto& layer : layers_) layer->params(list);
  if (final_norm_) final_norm_->params(list);
  if (output_weight_) list.push_back(&*output_weight_);
  return list;
}

Placement Decoder::boundary_placement() const {
  return batch_placement().with(Axis::kTp, options_.tensor_parallel.sequence_parallel
                                               ? PlaceState::kShard0
                                               : PlaceState::kReplicated);
}

Shape Decoder::boundary_shape(const Context& ctx, const MicroBatch& batch) const {
  return {token_rows(ctx, batch.layout, boundary_placement()).size(), config_.hidden_size};
}

// Each sequence is rotated by the frequencies of its own length, whatever stands beside it.
Tensor Decoder::rope_rows(Context& ctx, const SequenceLayout& layout, bool local) const {
  auto table = [&](const Tensor& positions, const RopeFrequencies& rope) {
    return rope_table(ctx, positions, rope.frequencies, rope.scale);
  };
  if (!rope_depends_on_length(config_)) return table(layout.positions, local ? rope_local_ : rope_);
  Tensor rows = ctx.allocate(ctx.wide(), {layout.tokens, rotary_dims(config_)}, "layout");
  for (const SequenceRows& sequence : layout.sequences) {
    Tensor part = table(layout.positions.rows(sequence.begin, sequence.end),
                        rope_frequencies(config_, local, sequence.length));
    ctx.kernels.elementwise.cast(ctx.stream, part, rows.view().rows(sequence.begin, sequence.end));
  }
  return rows;
}

LayerInput Decoder::layer_input(Context& ctx, const SequenceLayout& layout) const {
  LayerInput input;
  input.layout = &layout;
  if (config_.position_embedding_type != PositionKind::kRope) return input;
  input.rope = rope_rows(ctx, layout, false);
  input.rope_local = config_.rotary_base_local > 0 ? rope_rows(ctx, layout, true) : input.rope;
  return input;
}

Var Decoder::embed(Context& ctx, const MicroBatch& batch) const {
  ctx.layer = -1;
  Var partial = embedding(ctx, batch.tokens, *word_embeddings_,
                          {config_.embedding_multiplier, config_.padding_row}, batch_placement());
  Var x = leave_tensor_parallel(ctx, partial, options_.tensor_parallel.sequence_parallel);
  if (position_embeddings_) {
    BEV_CHECK(batch.layout.max_length <= config_.max_position_embeddings, ErrorKind::kInput,
              "a sequence of ", batch.layout.max_length, " tokens is longer than the ",
              config_.max_position_embeddings, " learned positions of the model");
    x = add_positions(ctx, x, batch.layout, *position_embeddings_);
  }
  return dropout(ctx, x, config_.hidden_dropout, batch.layout, RandomUse::kEmbeddingDropout);
}

Var Decoder::run_layers(Context& ctx, Var x, const LayerInput& input) const {
  const RecomputePolicy& policy = options_.recompute;
  auto count = static_cast<std::int64_t>(layers_.size());
  std::int64_t full = policy.layers_per_unit == 0 ? 0
                      : policy.full_layers < 0    ? count
                                                  : std::min(policy.full_layers, count);
  for (std::int64_t begin = 0; begin < full; begin += policy.layers_per_unit) {
    std::int64_t end = std::min(begin + policy.layers_per_unit, full);
    x = recompute(ctx, "recompute layers", x,
                  [this, begin, end, input](Context& to, const Var& from) {
                    Var y = from;
                    for (std::int64_t i = begin; i < end; ++i) {
                      y = layers_[static_cast<std::size_t>(i)]->forward(to, y, input);
                    }
                    return y;
                  });
  }
  for (std::int64_t i = full; i < count; ++i) {
    x = layers_[static_cast<std::size_t>(i)]->forward(ctx, x, input);
  }
  ctx.layer = -1;
  return x;
}

Var Decoder::hidden(Context& ctx, const MicroBatch& batch, const Var& input) const {
  Var x = range_.first ? embed(ctx, batch) : input;
  if (layers_.empty()) return x;
  return run_layers(ctx, std::move(x), layer_input(ctx, batch.layout));
}

Var Decoder::decode(Context& ctx, const MicroBatch& batch, const Var& input, const DecodeStep& step,
                    std::vector<LayerState>& states) const {
  Var x = range_.first ? embed(ctx, batch) : input;
  LayerInput layer = layer_input(ctx, batch.layout);
  layer.decode = &step;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layer.state = &states[i];
    x = layers_[i]->forward(ctx, x, layer);
  }
  ctx.layer = -1;
  return x;
}

HeadSpec Decoder::head() const {
  return {head_weight_, config_.logit_scale, config_.final_logit_softcapping};
}

Var Decoder::final_norm(Context& ctx, const MicroBatch& batch, const Var& hidden) const {
  Var y = norm(ctx, hidden, final_norm_->spec(false));
  return enter_tensor_parallel(ctx, y, batch.layout.tokens);
}

LossResult Decoder::loss(Context& ctx, const MicroBatch& batch, const Var& hidden) const {
  return lm_head_loss(ctx, final_norm(ctx, batch, hidden), batch.targets, head());
}

Tensor Decoder::logits(Context& ctx, const MicroBatch& batch, const Var& hidden) const {
  return lm_head_logits(ctx, final_norm(ctx, batch, hidden), head());
}

}  // namespace bev
