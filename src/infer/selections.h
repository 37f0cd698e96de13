// What a step selects: its memory on the device, its way to the host, and the results.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "infer/batch_inputs.h"

namespace bev {

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

// Device memory for the selections of a step, which lives until the host has read it.
struct SelectionOutputs {
  Tensor tokens, status;  // [rows] i32, in one tensor
  Tensor words;           // both
  Tensor losses;          // [rows] wide
  Tensor top_ids, top_values;
  Tensor first_losses;  // [rows] wide, of the likeliest token

  SelectionOutputs(Context& ctx, std::int64_t rows, std::int64_t top);
  // Tokens and their status lie one after the other, so that one copy fetches both.
  void arrange(std::int64_t rows);
};

// A step whose results the host has not read yet.
struct StepFlight {
  StepResults results;
  std::unique_ptr<SelectionOutputs> outputs;  // null: those of a graph
  BatchInputs inputs;
  std::int64_t rows = 0, top = 0;
  bool wants_logits = false;
  std::vector<double> logits;  // [selections, V]
  std::vector<std::int32_t> words, top_ids;
  std::vector<double> losses, first_losses, top_values;
  std::vector<float> narrow_losses, narrow_first, narrow_top;  // the same where the device has f32
  std::vector<Work> fetches;

  // Enqueues the copies of `count` selections to the host.
  void fetch(Context& ctx, const SelectionOutputs& from, std::int64_t count);
  // Waits for them.
  StepResults finish(std::int64_t vocabulary);

 private:
  void add_top();
  void add_logits(std::int64_t vocabulary);
};

// What the last pipeline stage knows, on all stages.
void share_results(Group& pp, bool last_stage, StepResults& results);

}  // namespace bev
