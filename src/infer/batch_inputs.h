// The inputs of a step, packed into one buffer that is uploaded at once. A CUDA graph keeps its
// buffer; the next step of its shape writes new numbers there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "infer/scheduler.h"
#include "kernels/sampling.h"
#include "nn/adapter.h"
#include "ops/micro_batch.h"

namespace bev {

// Sizes that fix the layout of the buffer and the launches of a step.
struct BatchShape {
  std::int64_t tokens = 0;        // T, padding included
  std::int64_t runs = 0;          // padding included
  std::int64_t table_stride = 0;  // blocks of a run
  std::int64_t selects = 0;       // rows of logits, padding included
  std::int64_t edits = 0;         // logit edits
  bool penalises = false;         // a rule reads token counts
  bool all_greedy = true;         // no row needs more than the largest logit

  auto operator<=>(const BatchShape&) const = default;
};

// The numbers of a step on the host. Requests have biases of allowed tokens alone.
struct BatchValues {
  BatchShape shape;
  std::vector<std::int32_t> tokens, token_slots, positions, samples, write_rows, table;
  std::vector<AttentionRun> runs;
  std::vector<std::int64_t> last_rows;  // row of the batch behind each selection
  std::vector<SamplingRule> rules;
  std::vector<std::int32_t> slots;  // of each selection
  std::vector<LogitEdit> edits;
  std::vector<Sequence*> selecting;  // the sequences, without padding
  std::vector<SequenceRows> sequences;
  std::vector<std::int64_t> run_slots;
  AdapterRows adapter_rows;  // where requests choose their adapter

  BatchValues() = default;
  // dynamic_rope: the RoPE frequencies of a prompt follow its length and those of later tokens
  // their position, as if each had been computed when it came; otherwise all follow the whole
  // sequence.
  BatchValues(const StepPlan& plan, std::int64_t block_tokens, bool dynamic_rope);
  // Adds rows that write to the null block and select nothing, up to the sizes of `shape`.
  void pad(const BatchShape& to, std::int64_t block_tokens);
  // Fills in the rows of each of so many adapters.
  void choose_adapters(const StepPlan& plan, std::size_t adapters);

 private:
  void add_tokens(const ScheduledRun& run, std::int64_t block_tokens, bool dynamic_rope);
  void add_selections(const ScheduledRun& run);
};

// Views of a step's buffer.
struct BatchInputs {
  Tensor words;  // i32
  Tensor tokens, token_slots, positions, samples, write_rows, table, runs;
  const SamplingRule* rules = nullptr;
  const std::int32_t* slots = nullptr;
  const LogitEdit* edits = nullptr;

  BatchInputs() = default;
  BatchInputs(Context& ctx, const BatchShape& shape);
  void upload(Context& ctx, const BatchValues& values) const;
};

}  // namespace bev
