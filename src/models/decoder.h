// The decoder: embedding, layers, final norm, head and loss, or the part of it that one pipeline
// stage holds. The same code trains, scores and generates.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/config.h"
#include "models/future_prediction.h"
#include "models/layer.h"
#include "models/rope.h"
#include "ops/loss.h"
#include "ops/sequence_layout.h"

namespace bev {

// What one depth of multi-token prediction reads: the token it is given beside each token, and the
// one that it should predict.
struct FutureTokens {
  Tensor tokens;  // [T] i32
  LossTargets targets;
};

// The tokens of one micro-batch on this rank. Every stage gets it from its own loader.
struct MicroBatch {
  SequenceLayout layout;
  Tensor tokens;                     // [T] i32
  LossTargets targets;               // used by the last stage; may be empty for logits
  std::vector<FutureTokens> future;  // one for each depth, where the model trains them
};

// Layers [first_layer, end_layer) of the model, perhaps none; the ends hold embedding and head.
struct StageRange {
  std::int64_t first_layer = 0, end_layer = 0;
  bool first = true, last = true;
};
// Layers as evenly as they divide, the earlier stages larger.
StageRange even_stage(std::int64_t layers, std::int64_t stages, std::int64_t stage);

// Of a micro-batch.
struct DecoderLoss {
  Var loss;                           // as LossResult::loss, of all depths together
  Tensor token_loss;                  // as LossResult::token_loss
  std::vector<Tensor> future_losses;  // the same of each depth
};

class Decoder {
 public:
  // `embedding_stage`: the first stage where the last one lies on the same rank; a tied head then
  // uses its table.
  Decoder(const ModelConfig& config, const StageRange& range, const BuildOptions& options,
          Decoder* embedding_stage = nullptr);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const ModelConfig& config() const { return config_; }
  const StageRange& range() const { return range_; }
  // All parameters of this stage, in the order of use.
  std::vector<Param*> params();

  // Shape of what stages hand on for this micro-batch, on this rank.
  Shape boundary_shape(const Context& ctx, const MicroBatch& batch) const;
  Placement boundary_placement() const;

  // Hidden states after this stage's layers; `input` comes from the stage before (empty on the
  // first).
  Var hidden(Context& ctx, const MicroBatch& batch, const Var& input) const;
  // Last stage: final norm, head and loss of `hidden`; while a tape records, the losses of future
  // tokens too.
  DecoderLoss loss(Context& ctx, const MicroBatch& batch, const Var& hidden) const;
  // Last stage: final norm and head of `hidden`: logits [T, V of this rank] in the wide dtype.
  Tensor logits(Context& ctx, const MicroBatch& batch, const Var& hidden) const;
  // As hidden(), with keys and values kept between calls: states has one entry per layer of the
  // stage.
  Var decode(Context& ctx, const MicroBatch& batch, const Var& input, const DecodeStep& step,
             std::vector<LayerState>& states) const;

 private:
  Tensor rope_rows(Context& ctx, const SequenceLayout& layout, bool local) const;
  LayerInput layer_input(Context& ctx, const SequenceLayout& layout) const;
  Var embed(Context& ctx, const MicroBatch& batch) const;
  Var look_up(Context& ctx, const Tensor& tokens, const Param& table) const;
  void add_future(Context& ctx, const MicroBatch& batch, Var hidden, DecoderLoss& loss) const;
  Var run_layers(Context& ctx, Var x, const LayerInput& input) const;
  HeadSpec head() const;

  ModelConfig config_;
  StageRange range_;
  BuildOptions options_;
  RopeFrequencies rope_, rope_local_;  // where they do not depend on the length
  std::optional<Param> word_embeddings_, position_embeddings_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  std::optional<Norm> final_norm_;
  std::optional<Param> output_weight_;  // untied, or the last rank's copy of a tied embedding
  const Param* head_weight_ = nullptr;  // of the last stage: its own, or the embedding's table
  std::vector<std::unique_ptr<FuturePrediction>> future_;  // of the last stage, by depth
  std::optional<Param> future_embeddings_;  // its copy of the table, where it has none else
  const Param* future_table_ = nullptr;
};

}  // namespace bev
