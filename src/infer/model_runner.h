// Computes the steps of the inference engine on one rank: owns the paged pools of the layers,
// launches the model's forward and the selection of tokens, and replays steps of one token per
// sequence as CUDA graphs by padded size. Nothing is allocated on the device after the first steps
// of each shape.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "infer/batch_inputs.h"
#include "parallel/rank_model.h"

namespace bev {

class DeviceGraph;

struct RunnerOptions {
  std::int64_t blocks = 0;  // without the null block
  std::int64_t block_tokens = 64;
  std::int64_t slots = 1;
  std::int64_t max_top_logprobs = 20;
  bool token_counts = true;  // penalties may be asked for
};

// What became of a selection.
struct SelectedToken {
  std::int32_t token = -1;
  bool finite = true;
  double logprob = 0;
  std::vector<TopLogprob> top = {};
  std::vector<double> logits = {};  // for Request::wants_logits
};

// A step whose results may still be on their way.
struct StepResults {
  std::vector<Sequence*> selecting;
  std::vector<ScheduledRun> runs;
  std::vector<SelectedToken> selected;
  std::vector<std::vector<double>> prompt_logprobs;  // by run; empty: not asked for
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
  struct Flight;
  struct Graph;
  struct Outputs;

  BatchShape padded(const BatchShape& shape) const;
  bool replayable(const StepPlan& plan) const;
  void copy_blocks(const StepPlan& plan);
  void copy_slots(const StepPlan& plan);
  void set_counts(const BatchValues& values);
  MicroBatch make_batch(const BatchInputs& inputs, const BatchValues& values) const;
  DecodeStep make_step(const BatchInputs& inputs, const BatchValues& values) const;
  void bound_keys(DecodeStep& step) const;
  Var hidden_states(const MicroBatch& batch, const DecodeStep& step);
  void find_top(const Tensor& raw, const Tensor& logits, Outputs& outputs, std::int64_t top);
  void select(const Var& hidden, const BatchInputs& inputs, const BatchValues& values,
              Outputs& outputs, Flight* flight);
  void score_prompts(const Var& hidden, const BatchValues& values, Flight& flight);
  // flight: null for a graph, which serves only plain selections.
  void compute(const BatchInputs& inputs, const BatchValues& values, const MicroBatch& batch,
               const DecodeStep& step, Outputs& outputs, Flight* flight);
  void replay(BatchValues& values, Flight& flight);
  std::unique_ptr<Outputs> take_outputs(std::int64_t rows);
  void fetch(const Outputs& from, std::int64_t rows, Flight& flight);
  static void add_top(const Flight& flight, StepResults& results);
  void add_logits(const Flight& flight, StepResults& results) const;
  void share(StepResults& results);

  RankModel& model_;
  RunnerOptions options_;
  bool dynamic_rope_ = false, slot_states_ = false;
  std::unique_ptr<Arena> pools_;  // memory of the next three
  std::vector<LayerState> states_;
  Tensor last_tokens_;  // [slots] i32
  Tensor counts_;       // [slots, V] i32; empty: no penalties
  std::map<BatchShape, std::unique_ptr<Graph>> graphs_;
  std::vector<std::unique_ptr<Outputs>> outputs_;  // free ones
  std::vector<std::unique_ptr<Flight>> flights_;
  std::int64_t graph_launches_ = 0;
};

}  // namespace bev
