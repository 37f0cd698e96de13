// Interface of every architecture: a model is a sequence of pipeline stages that pass named
// tensors. Engine, executor, memory plan, bridge, checkpoints and generation use nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "models/build_options.h"
#include "models/config.h"
#include "models/layer_spec.h"
#include "nn/mixer.h"
#include "ops/loss.h"
#include "ops/micro_batch.h"

namespace bev {

struct BatchFormat;
struct GlobalBatch;
class EncoderHeads;

// Layers [first_layer, end_layer), possibly none; the first and last stage also hold embedding and
// head.
struct StageRange {
  std::int64_t first_layer = 0, end_layer = 0;
  bool first = true, last = true;
  // MTP modules [first_depth, end_depth); the last stage has all remaining ones.
  std::int64_t first_depth = 0, end_depth = 0;

  Range depths(const ModelConfig& config) const {
    return {first_depth, last ? config.mtp_num_layers : end_depth};
  }
};
// Splits layers evenly; earlier stages get the remainder.
StageRange even_stage(std::int64_t layers, std::int64_t stages, std::int64_t stage);

// Name of a tensor passed between stages: a constant, with a number if there are several.
struct BoundaryId {
  std::string_view name;
  std::int64_t number = 0;
  bool operator==(const BoundaryId&) const = default;
};
inline constexpr BoundaryId kHiddenStates{"hidden states"};

// Tensor in the model dtype, with its shape on this rank.
struct BoundaryTensor {
  BoundaryId id;
  Shape shape;
  Placement placement;
};
using Boundary = std::vector<BoundaryTensor>;

// A tensor with a row of `columns` elements per token, placed like hidden states outside the
// tensor-parallel region.
BoundaryTensor token_boundary(const Context& ctx, BoundaryId id, const SequenceLayout& layout,
                              std::int64_t columns, const TensorParallel& tp);

// The part of a model on one pipeline stage. The same code trains, scores and generates.
class ModelStage {
 public:
  ModelStage(const ModelConfig& config, const StageRange& range) : config_(config), range_(range) {}
  virtual ~ModelStage() = default;
  ModelStage(const ModelStage&) = delete;
  ModelStage& operator=(const ModelStage&) = delete;

  const ModelConfig& config() const { return config_; }
  const StageRange& range() const { return range_; }
  // All parameters of this stage, in the order of use.
  virtual std::vector<Param*> params() = 0;
  // The same with trained copies, each behind what it is a copy of.
  std::vector<Param*> all_params();
  // Gives one of params() a trained copy, which the stage owns.
  void add_trained_copy(Param& param);
  // Word embeddings that this stage uses, its own or those it was built with; null: none.
  virtual Param* embedding() const = 0;

  // Tensors passed by the stage before and by this stage; for the last stage, the inputs of its
  // objective. `training` includes tensors that only the loss needs.
  virtual Boundary boundary_in(const Context& ctx, const MicroBatch& batch,
                               bool training) const = 0;
  virtual Boundary boundary_out(const Context& ctx, const MicroBatch& batch,
                                bool training) const = 0;
  // `in` has the tensors of boundary_in and `out` receives those of boundary_out, in the training
  // variant if a tape records; the memory of `out` is reused. The outputs of the last stage are
  // final: head() applies to them.
  virtual void forward(Context& ctx, const MicroBatch& batch, std::span<const Var> in,
                       std::vector<Var>& out) const = 0;

  // Last stage: the output layer for what predictions() makes of its final hidden states.
  virtual HeadSpec head() const = 0;
  // Last stage: what the output layer reads, [T, H] placed like the final hidden states.
  virtual Var predictions(Context&, const Var& final) const { return final; }
  // Last stage: the heads of an encoder besides the output layer; null: none.
  virtual const EncoderHeads* encoder_heads() const { return nullptr; }
  // Last stage: the head [labels, H] for sequence classification, which models have in place of an
  // output layer; null: none.
  virtual const Param* label_head() const { return nullptr; }

  // Generation; Error(kConfig) by default for models that cannot.
  // Caches and recurrent states of the layers of this stage, in order, on this rank.
  virtual std::vector<StateSpec> states(const Context& ctx) const;
  // Hidden states of new tokens, from those of the stage before (empty on the first), with a state
  // per layer. On the last stage, final_states() must be applied to the wanted rows.
  virtual Var decode(Context& ctx, const MicroBatch& batch, const Var& in, const DecodeStep& step,
                     std::vector<LayerState>& states) const;
  virtual Var final_states(Context& ctx, const Var& hidden) const;

 private:
  ModelConfig config_;
  StageRange range_;
  std::vector<std::unique_ptr<Param>> copies_;
};

// Last stage: logits [T, V of this rank] in the wide dtype, from final hidden states with `tokens`
// rows over all tp ranks.
Tensor stage_logits(Context& ctx, const ModelStage& stage, const Var& final, std::int64_t tokens);

// A kind of model: a constant that ModelConfig::architecture points to. A family of the registry is
// a set of names and defaults for one of them; applications may define their own.
struct Architecture {
  std::string_view name;
  // All layers, in the order in which stages hold them.
  std::vector<LayerSpec> (*layers)(const ModelConfig& config);
  // True if a stage looks tokens up, or has a head tied to the embedding.
  bool (*uses_embedding)(const ModelConfig& config, const StageRange& range);
  // `embedding`: word embeddings held by an earlier stage of this rank, or null.
  std::unique_ptr<ModelStage> (*make_stage)(const ModelConfig& config, const StageRange& range,
                                            const BuildOptions& options, Param* embedding);
  // Batch fields that its models read, among those known to data/batch_file.h.
  std::vector<FieldId> (*fields)(const ModelConfig& config) = nullptr;
};
extern const Architecture kDecoderArchitecture;

const Architecture& architecture_of(const ModelConfig& config);
std::vector<LayerSpec> layer_specs(const ModelConfig& config);
// What batch files of the model hold (data/batch_file.h).
BatchFormat batch_format(const ModelConfig& config);
std::unique_ptr<ModelStage> make_stage(const ModelConfig& config, const StageRange& range,
                                       const BuildOptions& options, Param* embedding = nullptr);
// All parameters of the model as a single rank would have them, without memory.
std::vector<Param> declare_params(const ModelConfig& config, const Fp8Config& fp8 = {});
// What MTP requires of a batch.
MtpSpec mtp_spec(const ModelConfig& config);
// Throws Error(kInput) if a batch masks tokens in the middle of a sample and a layer has a window,
// which would count only the remaining tokens.
void check_windows(const ModelConfig& config, const GlobalBatch& batch);

}  // namespace bev
