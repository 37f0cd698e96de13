#include "models/decoder.h"

#include <algorithm>

#include "autograd/offload.h"
#include "autograd/recompute.h"
#include "base/error.h"
#include "ops/collective.h"
#include "ops/elementwise.h"
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
    word_embeddings_->shared = tied || config.mtp_num_layers > 0;
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
    layers_.push_back(
        std::make_unique<DecoderLayer>(config, number, options, concat("decoder.layers.", number)));
  }
  if (!range.last) return;
  final_norm_ = make_norm("decoder.final_layernorm", config.hidden_size, norm_options(config));
  // Every depth uses the head once more, and the table.
  auto depths = static_cast<int>(config.mtp_num_layers);
  bool here = range.first || embedding_stage != nullptr;
  Param* table = here ? &*(range.first ? this : embedding_stage)->word_embeddings_ : nullptr;
  auto copy_of_table = [&](std::optional<Param>& copy) {
    copy = word_embeddings();
    copy->shared = copy->copy = true;
    copy->uses = 0;
    return &*copy;
  };
  if (table != nullptr) table->shared = false;
  if (!tied) {
    output_weight_ = table_param("output_layer.weight", config.vocab_size, config.hidden_size,
                                 config.init_method_std, true);
    output_weight_->uses = 1 + depths;
    head_weight_ = &*output_weight_;
    if (depths > 0 && table == nullptr) table = copy_of_table(future_embeddings_);
  } else {
    if (table == nullptr) table = copy_of_table(output_weight_);
    table->uses += 1 + depths;
    head_weight_ = table;
  }
  if (depths == 0) return;
  table->uses += depths;
  future_table_ = table;
  for (std::int64_t depth = 0; depth < config.mtp_num_layers; ++depth) {
    future_.push_back(std::make_unique<FuturePrediction>(config, depth, options));
  }
}

std::vector<Param*> Decoder::params() {
  std::vector<Param*> list;
  if (word_embeddings_) list.push_back(&*word_embeddings_);
  if (position_embeddings_) list.push_back(&*position_embeddings_);
  for (auto& layer : layers_) layer->params(list);
  if (final_norm_) final_norm_->params(list);
  if (output_weight_) list.push_back(&*output_weight_);
  if (future_embeddings_) list.push_back(&*future_embeddings_);
  for (auto& depth : future_) depth->params(list);
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

Var Decoder::look_up(Context& ctx, const Tensor& tokens, const Param& table) const {
  Var partial = embedding(ctx, tokens, table, {config_.embedding_multiplier, config_.padding_row},
                          batch_placement());
  return leave_tensor_parallel(ctx, partial, options_.tensor_parallel.sequence_parallel);
}

Var Decoder::embed(Context& ctx, const MicroBatch& batch) const {
  ctx.layer = -1;
  Var x = look_up(ctx, batch.tokens, *word_embeddings_);
  if (position_embeddings_) {
    BEV_CHECK(batch.layout.max_length <= config_.max_position_embeddings, ErrorKind::kInput,
              "a sequence of ", batch.layout.max_length, " tokens is longer than the ",
              config_.max_position_embeddings, " learned positions of the model");
    x = add_positions(ctx, x, batch.layout, *position_embeddings_);
  }
  return dropout(ctx, x, config_.hidden_dropout, batch.layout, RandomUse::kEmbeddingDropout);
}

namespace {
// Runs layers of a stage. What they keep for the backward may wait for it on the host.
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
    return LayerPlace{begin, count, range_.last && end == count};
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

DecoderLoss Decoder::loss(Context& ctx, const MicroBatch& batch, const Var& hidden) const {
  Var normalised = norm(ctx, hidden, final_norm_->spec(false));
  Var whole = enter_tensor_parallel(ctx, normalised, batch.layout.tokens);
  LossResult next = lm_head_loss(ctx, whole, batch.targets, head());
  DecoderLoss loss{next.loss, next.token_loss, {}};
  if (ctx.tape != nullptr) add_future(ctx, batch, normalised, loss);
  return loss;
}

void Decoder::add_future(Context& ctx, const MicroBatch& batch, Var hidden,
                         DecoderLoss& loss) const {
  if (future_.empty()) return;
  BEV_CHECK(batch.future.size() == future_.size(), ErrorKind::kInternal,
            "multi-token prediction: a batch with ", batch.future.size(), " depths of ",
            future_.size());
  LayerInput input = layer_input(ctx, batch.layout);
  for (std::size_t depth = 0; depth < future_.size(); ++depth) {
    const FutureTokens& future = batch.future[depth];
    ctx.layer = config_.num_layers + static_cast<std::int64_t>(depth);
    Var embedded = dropout(ctx, look_up(ctx, future.tokens, *future_table_), config_.hidden_dropout,
                           batch.layout, RandomUse::kEmbeddingDropout);
    hidden = future_[depth]->forward(ctx, hidden, embedded, input);
    Var whole = enter_tensor_parallel(ctx, hidden, batch.layout.tokens);
    LossResult next = lm_head_loss(ctx, whole, future.targets, head());
    loss.loss = add(ctx, loss.loss, next.loss);
    loss.future_losses.push_back(next.token_loss);
  }
  ctx.layer = -1;
}

Tensor Decoder::logits(Context& ctx, const MicroBatch& batch, const Var& hidden) const {
  Var normalised = norm(ctx, hidden, final_norm_->spec(false));
  return lm_head_logits(ctx, enter_tensor_parallel(ctx, normalised, batch.layout.tokens), head());
}

}  // namespace bev
