// The interface of every architecture: a model is a row of pipeline stages that hand on named
// tensors. Engine, executor, memory plan, bridge, checkpoints and generation know nothing else of
// it.
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

struct GlobalBatch;

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
};
// Layers as evenly as they divide, the earlier stages larger.
StageRange even_stage(std::int64_t layers, std::int64_t stages, std::int64_t stage);

// Name of a tensor that stages hand on: a constant, with a number where there are several.
struct BoundaryId {
  std::string_view name;
  std::int64_t number = 0;
  bool operator==(const BoundaryId&) const = default;
};
inline constexpr BoundaryId kHiddenStates{"hidden states"};

// In the model's dtype, on this rank.
struct BoundaryTensor {
  BoundaryId id;
  Shape shape;
  Placement placement;
};
using Boundary = std::vector<BoundaryTensor>;

// A row of `columns` numbers for each token, as hidden states outside of the tensor-parallel region
// are.
BoundaryTensor token_boundary(const Context& ctx, BoundaryId id, const SequenceLayout& layout,
                              std::int64_t columns, const TensorParallel& tp);

// The part of a model that one pipeline stage holds. The same code trains, scores and generates.
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
  // The word embeddings that this stage uses, its own or those it was built with; null: none.
  virtual Param* embedding() const = 0;

  // What the stage before hands on, and what this one does; for the last stage, what its objective
  // gets. `training`: with what only the loss needs.
  virtual Boundary boundary_in(const Context& ctx, const MicroBatch& batch,
                               bool training) const = 0;
  virtual Boundary boundary_out(const Context& ctx, const MicroBatch& batch,
                                bool training) const = 0;
  // `in` has the tensors of boundary_in (training: while a tape records), `out` is filled with
  // those of boundary_out; its memory is used again. The last stage's are final: head() applies.
  virtual void forward(Context& ctx, const MicroBatch& batch, std::span<const Var> in,
                       std::vector<Var>& out) const = 0;

  // Last stage: the output layer of its final hidden states.
  virtual HeadSpec head() const = 0;

  // Generation, of models that can: Error(kConfig) by default.
  // The states that this stage's layers keep, in their order, on one of `tp` ranks.
  virtual std::vector<StateSpec> states(std::int64_t tp) const;
  // Hidden states of new tokens, from those of the stage before (empty on the first), with a state
  // for each layer. The last stage's are final once final_states() was applied to the rows wanted.
  virtual Var decode(Context& ctx, const MicroBatch& batch, const Var& in, const DecodeStep& step,
                     std::vector<LayerState>& states) const;
  virtual Var final_states(Context& ctx, const Var& hidden) const;

 private:
  ModelConfig config_;
  StageRange range_;
};

// Last stage: logits [T, V of this rank] in the wide dtype of final hidden states of `tokens` rows
// in all.
Tensor stage_logits(Context& ctx, const ModelStage& stage, const Var& final, std::int64_t tokens);

// A kind of model: constants that ModelConfig::architecture points to. A family of the registry is
// a set of names and defaults for one of them; programs may have their own.
struct Architecture {
  std::string_view name;
  // All layers in the order in which stages hold them.
  std::vector<LayerSpec> (*layers)(const ModelConfig& config);
  // Whether a stage looks tokens up, or has a head with the same weights.
  bool (*uses_embedding)(const ModelConfig& config, const StageRange& range);
  // `embedding`: the word embeddings, where an earlier stage of this rank has them; else null.
  std::unique_ptr<ModelStage> (*make_stage)(const ModelConfig& config, const StageRange& range,
                                            const BuildOptions& options, Param* embedding);
  // Fields of batches that it uses, among the known ones of data/batch_file.h.
  std::span<const FieldId> fields{};
};
extern const Architecture kDecoderArchitecture;

const Architecture& architecture_of(const ModelConfig& config);
std::vector<LayerSpec> layer_specs(const ModelConfig& config);
std::unique_ptr<ModelStage> make_stage(const ModelConfig& config, const StageRange& range,
                                       const BuildOptions& options, Param* embedding = nullptr);
// All parameters of the model as one rank would have them, without memory.
std::vector<Param> declare_params(const ModelConfig& config, const Fp8Config& fp8 = {});
// What multi-token prediction wants of a batch.
FutureSpec future_spec(const ModelConfig& config);
// Error(kInput) where a batch leaves out tokens between others and a layer has a window, which
// counts the tokens that are there.
void check_windows(const ModelConfig& config, const GlobalBatch& batch);

}  // namespace bev
