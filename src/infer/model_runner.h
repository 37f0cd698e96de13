// Computes the steps of the inference engine on one rank: owns the paged pools of the layers,
// launches the model's forward and the selection of tokens, and replays steps of one token per
// sequence as CUDA graphs by padded size. Nothing is allocated on the device after the first steps
// of each shape.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "infer/selections.h"
#include "parallel/rank_model.h"

namespace bev {

class DeviceGraph;

struct RunnerOptions {
  std::int64_t blocks = 0;  // without the null block
  std::int64_t block_tokens = 64;
  std::int64_t slots = 1;
  std::int64_t max_top_logprobs = kMostTopLogprobs;
  bool token_counts = true;  // penalties may be asked for
  // Requests choose one of the model's adapters or none (CacheKey::adapter); otherwise the model's
  // only one applies to all.
  bool chosen_adapters = false;
};

class ModelRunner {
 public:
  // Bytes of a block, and of a slot, in the pools of this rank.
  static std::int64_t bytes_per_block(RankModel& model, std::int64_t block_tokens);
  static std::int64_t bytes_per_slot(RankModel& model, bool token_counts);
  // True if sequences have states besides those of their tokens.
  static bool has_slot_states(RankModel& model);

  ModelRunner(RankModel& model, const RunnerOptions& options);
  ~ModelRunner();

  // Computes a prompt of padding with so many tokens and selections, and waits for it: the memory
  // of steps up to that size is then there.
  void warm_up(std::int64_t tokens, std::int64_t selections);
  // Enqueues a step. `expert_tokens`: tokens of each rank that shares experts. Returns before the
  // device is done if it runs asynchronously.
  void launch(const StepPlan& plan, const std::vector<std::int64_t>& expert_tokens);
  // Waits for the oldest step launched.
  StepResults finish();
  std::int64_t in_flight() const { return std::ssize(flights_); }
  // Computes a token of padding on a rank without work, when ranks that share its experts have
  // some.
  void launch_idle(const std::vector<std::int64_t>& expert_tokens);

  void drop_graphs();
  std::int64_t graph_launches() const { return graph_launches_; }

 private:
  struct Graph;

  BatchShape padded(const BatchShape& shape) const;
  bool replayable(const StepPlan& plan) const;
  void copy_blocks(const StepPlan& plan);
  void copy_slots(const StepPlan& plan);
  void set_counts(const BatchValues& values);
  MicroBatch make_batch(const BatchInputs& inputs, const BatchValues& values) const;
  DecodeStep make_step(const BatchInputs& inputs, const BatchValues& values) const;
  void bound_keys(DecodeStep& step) const;
  Var hidden_states(const MicroBatch& batch, const DecodeStep& step);
  void select(const Var& hidden, const BatchInputs& inputs, const BatchValues& values,
              SelectionOutputs& outputs, StepFlight* flight);
  void gather_asked(const Tensor& logits, StepFlight& flight);
  void score_prompts(const Var& hidden, const BatchValues& values, StepFlight& flight);
  // flight: null for a graph, which serves only plain selections.
  void compute(const BatchInputs& inputs, const BatchValues& values, const MicroBatch& batch,
               const DecodeStep& step, SelectionOutputs& outputs, StepFlight* flight);
  void replay(BatchValues& values, StepFlight& flight);
  AdapterRows no_adapter_rows() const;
  std::unique_ptr<SelectionOutputs> take_outputs(std::int64_t rows);

  RankModel& model_;
  RunnerOptions options_;
  bool dynamic_rope_ = false, slot_states_ = false;
  std::unique_ptr<Arena> pools_;  // memory of the next three
  std::vector<LayerState> states_;
  Tensor last_tokens_;  // [slots] i32
  Tensor counts_;       // [slots, V] i32; empty: no penalties
  std::map<BatchShape, std::unique_ptr<Graph>> graphs_;
  std::vector<std::unique_ptr<SelectionOutputs>> outputs_;  // free ones
  std::vector<std::unique_ptr<StepFlight>> flights_;
  std::int64_t graph_launches_ = 0;
};

}  // namespace bev
