// The decoder: embedding, layers, final norm, head and loss, or the part of it that one pipeline
// stage holds. The same code trains, scores and generates.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/placement.h"
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
  // Depths of multi-token prediction [first_depth, end_depth); the last stage has all that are
  // left.
  std::int64_t first_depth = 0, end_depth = 0;

  Range depths(const ModelConfig& config) const {
    return {first_depth, last ? config.mtp_num_layers : end_depth};
  }
  // Whether it looks tokens up, or has a head that is the same table.
  bool uses_table(const ModelConfig& config) const;
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
  // `table`: the embedding's, where an earlier stage of this rank has it.
  Decoder(const ModelConfig& config, const StageRange& range, const BuildOptions& options,
          Param* table = nullptr);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const ModelConfig& config() const { return config_; }
  const StageRange& range() const { return range_; }
  // All parameters of this stage, in the order of use.
  std::vector<Param*> params();

  // The embedding's table that this rank has; null: none so far.
  Param* table() const { return table_; }

  // Shape of what stages hand on for this micro-batch, on this rank: hidden states, below them
  // those of so many depths, which go along while a tape records.
  Shape boundary_shape(const Context& ctx, const MicroBatch& batch, std::int64_t depths = 0) const;
  Placement boundary_placement() const;

  // Hidden states after this stage's layers; `input` comes from the stage before (empty on the
  // first). The last stage's depths are left to loss().
  Var hidden(Context& ctx, const MicroBatch& batch, const Var& input) const;
  // Last stage: final norm (where no stage before has it), head and loss of `hidden`; while a tape
  // records, the losses of future tokens too.
  DecoderLoss loss(Context& ctx, const MicroBatch& batch, const Var& hidden) const;
  // Last stage: final norm and head of `hidden`: logits [T, V of this rank] in the wide dtype.
  Tensor logits(Context& ctx, const MicroBatch& batch, const Var& hidden) const;
  // As hidden(), with keys and values kept between calls: states has one entry per layer of the
  // stage.
  Var decode(Context& ctx, const MicroBatch& batch, const Var& input, const DecodeStep& step,
             std::vector<LayerState>& states) const;

 private:
  void add_head();
  Tensor rope_rows(Context& ctx, const SequenceLayout& layout, bool local) const;
  LayerInput layer_input(Context& ctx, const SequenceLayout& layout) const;
  Var embed(Context& ctx, const MicroBatch& batch) const;
  Var look_up(Context& ctx, const Tensor& tokens, const Param& table) const;
  Var normalised(Context& ctx, const Var& hidden) const;
  // The hidden states of a depth from those of the depth before.
  Var predict(Context& ctx, const MicroBatch& batch, std::int64_t depth, const Var& hidden,
              const LayerInput& input) const;
  Var predict_depths(Context& ctx, const MicroBatch& batch, const Var& hidden) const;
  LossResult head_loss(Context& ctx, const Var& hidden, const LossTargets& targets,
                       std::int64_t tokens) const;
  Var run_layers(Context& ctx, Var x, const LayerInput& input) const;
  HeadSpec head() const;

  ModelConfig config_;
  StageRange range_;
  BuildOptions options_;
  RopeFrequencies rope_, rope_local_;     // where they do not depend on the length
  std::optional<Param> word_embeddings_;  // on a later stage a copy
  std::optional<Param> position_embeddings_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  std::optional<Norm> final_norm_;      // of the stage that has the first depth, or of the last
  std::optional<Param> output_weight_;  // untied
  Param* table_ = nullptr;              // of the embedding: its own, or an earlier stage's
  const Param* head_weight_ = nullptr;  // of the last stage
  std::vector<std::unique_ptr<FuturePrediction>> future_;  // by depth
};

}  // namespace bev
