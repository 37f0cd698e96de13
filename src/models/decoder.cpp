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

bool StageRange::uses_table(const ModelConfig& config) const {
  bool tied_head = last && !config.untie_embeddings_and_output_weights;
  return first || tied_head || depths(config).size() > 0;
}

Decoder::Decoder(const ModelConfig& config, const StageRange& range, const BuildOptions& options,
                 Param* table)
    : config_(config), range_(range), options_(options), table_(table) {
  if (table_ == nullptr && range.uses_table(config)) {
    word_embeddings_ = table_param("embedding.word_embeddings.weight", config.vocab_size,
                                   config.hidden_size, config.init_method_std, true);
    table_ = &*word_embeddings_;
    table_->shared = options.shared_table;
    table_->copy = !range.first;
    table_->uses = 0;
  }
  if (range.first) {
    ++table_->uses;
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
  const Range depths = range.depths(config);
  if (range.first_depth == 0 && (range.last || depths.size() > 0)) {
    final_norm_ = make_norm("decoder.final_layernorm", config.hidden_size, norm_options(config));
  }
  for (std::int64_t depth = depths.begin; depth < depths.end; ++depth) {
    ++table_->uses;
    future_.push_back(std::make_unique<FuturePrediction>(config, depth, options));
  }
  if (range.last) add_head();
}

void Decoder::add_head() {
  // Every depth uses it once more.
  auto uses = static_cast<int>(1 + config_.mtp_num_layers);
  if (config_.untie_embeddings_and_output_weights) {
    output_weight_ = table_param("output_layer.weight", config_.vocab_size, config_.hidden_size,
                                 config_.init_method_std, true);
    output_weight_->uses = uses;
    head_weight_ = &*output_weight_;
  } else {
    table_->uses += uses;
    head_weight_ = table_;
  }
}

std::vector<Param*> Decoder::params() {
  std::vector<Param*> list;
  if (word_embeddings_) list.push_back(&*word_embeddings_);
  if (position_embeddings_) list.push_back(&*position_embeddings_);
  for (auto& layer : layers_) layer->params(list);
  if (final_norm_) final_norm_->params(list);
  if (output_weight_) list.push_back(&*output_weight_);
  for (auto& depth : future_) depth->params(list);
  return list;
}

Placement Decoder::boundary_placement() const {
  return batch_placement().with(Axis::kTp, options_.tensor_parallel.sequence_parallel
                                               ? PlaceState::kShard0
                                               : PlaceState::kReplicated);
}

Shape Decoder::boundary_shape(const Context& ctx, const MicroBatch& batch,
                              std::int64_t depths) const {
  std::int64_t rows = token_rows(ctx, batch.layout, boundary_placement()).size();
  return {rows * (1 + depths), config_.hidden_size};
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
    ctx.kernels.cast(ctx.stream, part, rows.view().rows(sequence.begin, sequence.end));
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
  Var x = look_up(ctx, batch.tokens, *table_);
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
  if (!layers_.empty()) x = run_layers(ctx, std::move(x), layer_input(ctx, batch.layout));
  return range_.last || future_.empty() ? x : predict_depths(ctx, batch, x);
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

Var Decoder::normalised(Context& ctx, const Var& hidden) const {
  return final_norm_ ? norm(ctx, hidden, final_norm_->spec(false)) : hidden;
}

Var Decoder::predict(Context& ctx, const MicroBatch& batch, std::int64_t depth, const Var& hidden,
                     const LayerInput& input) const {
  ctx.layer = config_.num_layers + depth;
  const Tensor& tokens = batch.future[static_cast<std::size_t>(depth)].tokens;
  Var embedded = dropout(ctx, look_up(ctx, tokens, *table_), config_.hidden_dropout, batch.layout,
                         RandomUse::kEmbeddingDropout);
  auto index = static_cast<std::size_t>(depth - range_.first_depth);
  Var out = future_[index]->forward(ctx, hidden, embedded, input);
  ctx.layer = -1;
  return out;
}

// On a stage before the last, which gets the results of all depths so far for its losses.
Var Decoder::predict_depths(Context& ctx, const MicroBatch& batch, const Var& hidden) const {
  Var before = normalised(ctx, hidden);
  if (ctx.tape == nullptr) return before;
  std::vector<Var> states = split_rows(ctx, before, 1 + range_.first_depth);
  LayerInput input = layer_input(ctx, batch.layout);
  for (std::int64_t depth = range_.first_depth; depth < range_.end_depth; ++depth) {
    states.push_back(predict(ctx, batch, depth, states.back(), input));
  }
  return join_rows(ctx, states);
}

LossResult Decoder::head_loss(Context& ctx, const Var& hidden, const LossTargets& targets,
                              std::int64_t tokens) const {
  return lm_head_loss(ctx, enter_tensor_parallel(ctx, hidden, tokens), targets, head());
}

DecoderLoss Decoder::loss(Context& ctx, const MicroBatch& batch, const Var& hidden) const {
  std::int64_t depths = ctx.tape != nullptr ? config_.mtp_num_layers : 0;
  BEV_CHECK(std::ssize(batch.future) >= depths, ErrorKind::kInternal,
            "multi-token prediction: a batch with ", batch.future.size(), " depths of ", depths);
  Var state = normalised(ctx, hidden);
  std::vector<Var> came;  // of the depths that earlier stages have
  if (depths > 0 && range_.first_depth > 0) {
    came = split_rows(ctx, state, 1 + range_.first_depth);
    state = std::move(came.front());
  }
  LossResult next = head_loss(ctx, state, batch.targets, batch.layout.tokens);
  DecoderLoss loss{next.loss, next.token_loss, {}};
  LayerInput input = future_.empty() || depths == 0 ? LayerInput() : layer_input(ctx, batch.layout);
  for (std::int64_t depth = 0; depth < depths; ++depth) {
    auto index = static_cast<std::size_t>(depth);
    state = depth < range_.first_depth ? std::move(came[index + 1])
                                       : predict(ctx, batch, depth, state, input);
    next = head_loss(ctx, state, batch.future[index].targets, batch.layout.tokens);
    loss.loss = add(ctx, loss.loss, next.loss);
    loss.future_losses.push_back(next.token_loss);
  }
  return loss;
}

Tensor Decoder::logits(Context& ctx, const MicroBatch& batch, const Var& hidden) const {
  Var whole = enter_tensor_parallel(ctx, normalised(ctx, hidden), batch.layout.tokens);
  return lm_head_logits(ctx, whole, head());
}

}  // namespace bev
