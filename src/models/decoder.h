// Decoder-only or encoder-only transformer: embedding, layers, final norm, MTP modules and heads,
// or the part of them on one pipeline stage.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/placement.h"
#include "models/encoder_heads.h"
#include "models/layer.h"
#include "models/model.h"
#include "models/mtp.h"
#include "models/rope.h"
#include "models/word_embeddings.h"

namespace bev {

class Decoder final : public ModelStage {
 public:
  Decoder(const ModelConfig& config, const StageRange& range, const BuildOptions& options,
          Param* embedding);

  std::vector<Param*> params() override;
  Param* embedding() const override { return word_embeddings_.get(); }
  // Hidden states and, in training, those of the MTP modules so far: the last stage computes their
  // losses.
  Boundary boundary_in(const Context& ctx, const MicroBatch& batch, bool training) const override;
  Boundary boundary_out(const Context& ctx, const MicroBatch& batch, bool training) const override;
  void forward(Context& ctx, const MicroBatch& batch, std::span<const Var> in,
               std::vector<Var>& out) const override;
  HeadSpec head() const override;
  const Param* label_head() const override { return label_head_ ? &*label_head_ : nullptr; }
  Var predictions(Context& ctx, const Var& final) const override;
  const EncoderHeads* encoder_heads() const override {
    return encoder_heads_ ? &*encoder_heads_ : nullptr;
  }
  std::vector<StateSpec> states(const Context& ctx) const override;
  Var decode(Context& ctx, const MicroBatch& batch, const Var& in, const DecodeStep& step,
             std::vector<LayerState>& states) const override;
  Var final_states(Context& ctx, const Var& hidden) const override;

 private:
  void add_tables();
  void add_head();
  void add_output_layer();
  Boundary boundary(const Context& ctx, const MicroBatch& batch, std::int64_t depths) const;
  Tensor rope_rows(Context& ctx, const SequenceLayout& layout, bool local) const;
  LayerInput layer_input(Context& ctx, const SequenceLayout& layout) const;
  Var embed(Context& ctx, const MicroBatch& batch) const;
  // Appends the hidden states of the MTP modules to the outputs.
  void add_depths(Context& ctx, const MicroBatch& batch, std::span<const Var> in,
                  std::vector<Var>& out) const;
  // Hidden states of an MTP module from those of the module before.
  Var predict(Context& ctx, const MicroBatch& batch, std::int64_t depth, const Var& hidden,
              const LayerInput& input) const;
  Var run_layers(Context& ctx, Var x, const LayerInput& input) const;

  BuildOptions options_;
  RopeFrequencies rope_, rope_local_;  // if they do not depend on the length
  WordEmbeddings word_embeddings_;
  std::optional<Param> position_embeddings_, token_types_;
  std::optional<Norm> embedding_norm_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  std::optional<Norm> final_norm_;      // on the stage of the first MTP module, else on the last
  std::optional<Param> output_weight_;  // untied
  std::optional<Param> output_bias_;
  const Param* head_weight_ = nullptr;          // on the last stage
  std::optional<Param> label_head_;             // on the last stage, in place of head_weight_
  std::optional<EncoderHeads> encoder_heads_;   // on the last stage
  std::vector<std::unique_ptr<MtpLayer>> mtp_;  // MTP modules
};

}  // namespace bev
