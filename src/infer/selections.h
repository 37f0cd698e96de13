// What a step selects: its memory on the device, its way to the host, and the results.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "infer/batch_inputs.h"
#include "infer/prompt_scores.h"
#include "ops/top_tokens.h"

namespace bev {

// The likeliest tokens of rows, as the device finds them (TopTokens), on the host.
struct TopLists {
  std::vector<std::int32_t> ids;             // [rows, width]
  std::vector<double> values, first_losses;  // [rows, width], [rows]
  std::int64_t width = 0;

  // The first `count` of a row. `own` is a token of the row, whose log-probability was computed by
  // itself and may differ in the last bits: its entry has it exactly, so have those of the same
  // logit, and the list never rises, nor falls below it before its own place.
  std::vector<TopLogprob> list(std::size_t row, std::int64_t count, const TopLogprob& own) const;
  // The log-probability of a logit of a row.
  double logprob(std::size_t row, double logit) const;
};

// What became of a selection.
struct SelectedToken {
  std::int32_t token = -1;
  bool finite = true;
  double logprob = 0;
  std::vector<TopLogprob> top = {}, asked = {};
  std::vector<double> logits = {};  // for Request::wants_logits
};

// A step whose results may still be on their way.
struct StepResults {
  std::vector<Sequence*> selecting;
  std::vector<ScheduledRun> runs;
  std::vector<SelectedToken> selected;
  std::vector<PromptScores> prompts;  // by run; without numbers: not asked for
};

// Device memory for the selections of a step, which lives until the host has read it.
struct SelectionOutputs {
  Tensor tokens, status;  // [rows] i32, in one tensor
  Tensor words;           // both
  Tensor losses;          // [rows] wide
  Tensor top_ids, top_values;
  Tensor first_losses;  // [rows] wide, of the likeliest token

  SelectionOutputs(Context& ctx, std::int64_t rows, std::int64_t top);
  // Memory for the k likeliest tokens of so many rows.
  TopTokens top(std::int64_t rows, std::int64_t k) const;
  // Tokens and their status lie one after the other, so that one copy fetches both.
  void arrange(std::int64_t rows);
};

// A step whose results the host has not read yet.
struct StepFlight {
  StepResults results;
  std::unique_ptr<SelectionOutputs> outputs;  // null: those of a graph
  BatchInputs inputs;
  std::int64_t rows = 0, top = 0;  // top: likeliest tokens of each row
  bool wants_logits = false;
  std::vector<double> logits;  // [selections, V]
  Tensor asked_logits;  // of Request::logprob_tokens, those of all selections one after the other
  std::vector<std::int32_t> words;
  TopLists lists;
  std::vector<double> losses, asked;
  std::vector<float> narrow_losses, narrow_first, narrow_top, narrow_asked;  // where it has f32
  std::vector<Work> fetches;

  // Enqueues the copies of `count` selections to the host.
  void fetch(Context& ctx, const SelectionOutputs& from, std::int64_t count);
  // Waits for them.
  StepResults finish(std::int64_t vocabulary);

 private:
  void add_lists();
  void add_logits(std::int64_t vocabulary);
};

// Values in the wide dtype. Synchronises with the device.
std::vector<double> download_wide(Context& ctx, const Tensor& x);
// What the last pipeline stage knows, on all stages.
void share_results(Group& pp, bool last_stage, StepResults& results);

}  // namespace bev
