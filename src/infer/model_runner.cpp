#include "infer/model_runner.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "autograd/recompute.h"
#include "base/divide.h"
#include "base/error.h"
#include "base/scoped_value.h"
#include "kernels/device.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "models/rope.h"
#include "ops/collective.h"
#include "ops/loss.h"

namespace bev {

namespace {

// Rows of x [T, H] one after the other; one copy for each stretch of neighbours.
Tensor gather_rows(Context& ctx, const Tensor& x, std::span<const std::int64_t> rows) {
  const std::int64_t count = std::ssize(rows), width = x.shape()[1];
  bool all = count == x.shape()[0];
  for (std::int64_t i = 0; all && i < count; ++i) all = rows[static_cast<std::size_t>(i)] == i;
  if (all) return x;
  Tensor out = ctx.allocate(x.dtype(), {count, width}, "activations");
  for (std::size_t begin = 0; begin < rows.size();) {
    std::size_t end = begin + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    ctx.kernels.elementwise.copy_rows(
        ctx.stream, {.src = x.view().address(rows[begin] * width),
                     .dst = out.view().address(static_cast<std::int64_t>(begin) * width),
                     .dtype = x.dtype(),
                     .rows = static_cast<std::int64_t>(end - begin),
                     .columns = width,
                     .src_stride = width,
                     .dst_stride = width});
    begin = end;
  }
  return out;
}

// Copies rows [from, from + count) of x to the rows that begin at `to`.
void move_rows(Context& ctx, const Tensor& x, std::int64_t from, std::int64_t to,
               std::int64_t count) {
  if (x.empty()) return;
  ctx.kernels.device.copy(ctx.stream, x.view().rows(from, from + count),
                          x.view().rows(to, to + count));
}

std::int64_t blocks_rounded(std::int64_t blocks) {
  constexpr std::int64_t kLeast = 16;
  return static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max(blocks, kLeast))));
}

// Rows are computed with the adapters that they choose; null: with the only one.
class AdapterScope {
 public:
  AdapterScope(Context& ctx, const AdapterRows* rows)
      : on_(ctx.adapters, ctx.adapters || rows != nullptr), rows_(ctx.adapter_rows, rows) {}

 private:
  ScopedValue<bool> on_;
  ScopedValue<const AdapterRows*> rows_;
};

}  // namespace

// A step of one token per sequence, as a CUDA graph with buffers of its own.
struct ModelRunner::Graph {
  BatchInputs inputs;
  MicroBatch batch;
  DecodeStep step;
  SelectionOutputs outputs;
  std::unique_ptr<DeviceGraph> recording;
  bool ran = false;  // once without being captured

  Graph(Context& ctx, const BatchShape& shape)
      : inputs(ctx, shape), outputs(ctx, shape.selects, 0) {
    outputs.arrange(shape.selects);
  }
};

std::int64_t ModelRunner::bytes_per_block(RankModel& model, std::int64_t block_tokens) {
  std::int64_t bytes = 0;
  for (const StateSpec& spec : model.stage().states(model.ctx())) {
    bytes += spec.bytes_per_token(model.options().dtype) * block_tokens;
  }
  return bytes;
}

std::int64_t ModelRunner::bytes_per_slot(RankModel& model, bool token_counts) {
  std::int64_t bytes = 0;
  for (const StateSpec& spec : model.stage().states(model.ctx())) {
    bytes += spec.bytes_per_sequence(model.options().dtype);
  }
  constexpr std::int64_t kCountBytes = 4;
  bool counts = token_counts && model.stage().range().last;
  return bytes + (counts ? kCountBytes * model.options().model.vocab_size : 0);
}

bool ModelRunner::has_slot_states(RankModel& model) {
  return std::ranges::any_of(model.stage().states(model.ctx()),
                             [](const StateSpec& spec) { return spec.sequence_elements > 0; });
}

ModelRunner::ModelRunner(RankModel& model, const RunnerOptions& options)
    : model_(model), options_(options) {
  Context& ctx = model.ctx();
  const ModelConfig& config = model.options().model;
  dynamic_rope_ = config.rope_scaling.kind == RopeScalingKind::kDynamic;
  slot_states_ = has_slot_states(model);
  const std::int64_t rows = (options.blocks + 1) * options.block_tokens;
  pools_ = model.rank().make_arena();
  auto allocate = [&](Dtype dtype, std::int64_t count, std::int64_t columns) {
    return columns > 0 ? Tensor(*pools_, dtype, {count, columns}, "kv cache") : Tensor();
  };
  for (const StateSpec& spec : model.stage().states(ctx)) {
    LayerState& state = states_.emplace_back();
    state.kv.keys = allocate(ctx.dtype, rows, spec.key_columns);
    state.kv.values = allocate(ctx.dtype, rows, spec.value_columns);
    state.sequences = allocate(ctx.wide(), options.slots, spec.sequence_elements);
    // Rows of padding are read before anything else is written to the null block.
    for (const Tensor& rows_of : {state.kv.keys, state.kv.values}) {
      if (!rows_of.empty()) {
        ctx.kernels.fill(ctx.stream, rows_of.view().rows(0, options.block_tokens), 0);
      }
    }
  }
  last_tokens_ = Tensor(*pools_, Dtype::kI32, {options.slots}, "kv cache");
  if (options.token_counts && model.stage().range().last) {
    counts_ = Tensor(*pools_, Dtype::kI32, {options.slots, config.vocab_size}, "token counts");
  }
}

ModelRunner::~ModelRunner() = default;

void ModelRunner::drop_graphs() { graphs_.clear(); }

// Steps of few sequences are padded to few sizes, each of which is one graph.
BatchShape ModelRunner::padded(const BatchShape& shape) const {
  constexpr std::int64_t kFine = 8, kStep = 16, kCoarse = 128, kCoarseStep = 32;
  BatchShape to = shape;
  to.runs = shape.runs <= kFine
                ? static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(shape.runs)))
            : shape.runs <= kCoarse ? round_up(shape.runs, kStep)
                                    : round_up(shape.runs, kCoarseStep);
  to.tokens = to.selects = to.runs;
  to.table_stride = blocks_rounded(shape.table_stride);
  to.edits = shape.edits == 0 ? 0 : blocks_rounded(shape.edits);
  return to;
}

// Frequencies that follow from lengths, the slots of recurrent states and the rows of adapters are
// known to the host alone.
bool ModelRunner::replayable(const StepPlan& plan) const {
  return !options_.chosen_adapters && model_.rank().can_capture() &&
         model_.mesh().world().size() == 1 && !slot_states_ &&
         !rope_depends_on_length(model_.options().model) &&
         std::ranges::all_of(plan.runs, [](const ScheduledRun& run) {
           const Request& asked = run.sequence->asked();
           return run.count == 1 && run.selects && run.forks.empty() && !asked.wants_logits() &&
                  asked.top_logprobs == 0 && asked.logprob_tokens.empty();
         });
}

void ModelRunner::copy_blocks(const StepPlan& plan) {
  const std::int64_t width = options_.block_tokens;
  for (const BlockCopy& copy : plan.block_copies) {
    for (const LayerState& state : states_) {
      move_rows(model_.ctx(), state.kv.keys, copy.from * width, copy.to * width, width);
      move_rows(model_.ctx(), state.kv.values, copy.from * width, copy.to * width, width);
    }
  }
}

void ModelRunner::copy_slots(const StepPlan& plan) {
  for (const SlotCopy& copy : plan.slot_copies) {
    for (const LayerState& state : states_) {
      move_rows(model_.ctx(), state.sequences, copy.from, copy.to, 1);
    }
  }
}

// Token counts of sequences that took their slot since their last selection.
void ModelRunner::set_counts(const BatchValues& values) {
  Context& ctx = model_.ctx();
  for (Sequence* sequence : values.selecting) {
    if (!sequence->asked().sampling.penalises() || std::exchange(sequence->counts_are_set, true)) {
      continue;
    }
    if (counts_.empty()) continue;  // another stage selects
    Tensor tokens = ctx.upload<std::int32_t>(sequence->tokens, "batch");
    const std::int32_t* prompt = tokens.as<std::int32_t>();
    ctx.kernels.sampling.count(
        ctx.stream, {.counts = counts_,
                     .row = sequence->slot,
                     .prompt = prompt,
                     .output = prompt + sequence->prompt_tokens,
                     .prompt_tokens = sequence->prompt_tokens,
                     .output_tokens = std::ssize(sequence->tokens) - sequence->prompt_tokens});
  }
}

MicroBatch ModelRunner::make_batch(const BatchInputs& inputs, const BatchValues& values) const {
  MicroBatch batch;
  SequenceLayout& layout = batch.layout;
  layout.tokens = values.shape.tokens;
  layout.sequences = values.sequences;
  for (const SequenceRows& rows : values.sequences) {
    layout.max_length = std::max(layout.max_length, rows.length);
  }
  layout.positions = inputs.positions;
  layout.samples = inputs.samples;
  layout.sample_positions = inputs.positions;
  batch.tokens = inputs.tokens;
  return batch;
}

DecodeStep ModelRunner::make_step(const BatchInputs& inputs, const BatchValues& values) const {
  DecodeStep step;
  step.runs = values.runs;
  step.device_runs = inputs.runs;
  step.write_rows = inputs.write_rows;
  step.block_table = inputs.table;
  step.table_stride = values.shape.table_stride;
  step.block_tokens = options_.block_tokens;
  step.whole_prompts = std::ranges::all_of(
      values.runs, [](const AttentionRun& run) { return run.offset == 0 && run.q_count > 1; });
  step.slots = values.run_slots;
  return step;
}

Var ModelRunner::hidden_states(const MicroBatch& batch, const DecodeStep& step) {
  Context& ctx = model_.ctx();
  Group& pp = model_.mesh().pp();
  const ModelStage& stage = model_.stage();
  Var input;
  if (!stage.range().first) {
    BoundaryTensor boundary = stage.boundary_in(ctx, batch, false).front();
    Tensor received = ctx.allocate(boundary.dtype, boundary.shape, "activations");
    pp.receive(received, pp.rank() - 1, 0, boundary.id.name).wait();
    input = Var{received, boundary.placement, -1, nullptr};
  }
  Var hidden = stage.decode(ctx, batch, input, step, states_);
  if (!stage.range().last) pp.send(hidden.tensor, pp.rank() + 1, 0, kHiddenStates.name).wait();
  return hidden;
}

// The logits of Request::logprob_tokens: rows of a table that is one column wide.
void ModelRunner::gather_asked(const Tensor& logits, StepFlight& flight) {
  Context& ctx = model_.ctx();
  const std::int64_t columns = logits.shape()[1], all = logits.numel();
  BEV_CHECK(all <= std::numeric_limits<std::int32_t>::max(), ErrorKind::kInternal,
            "logprob tokens: ", logits.shape(), " are more logits than an index counts");
  std::vector<std::int32_t> places;
  for (std::size_t i = 0; i < flight.results.selecting.size(); ++i) {
    for (std::int32_t token : flight.results.selecting[i]->asked().logprob_tokens) {
      places.push_back(static_cast<std::int32_t>(static_cast<std::int64_t>(i) * columns + token));
    }
  }
  if (places.empty()) return;
  Tensor index = ctx.upload<std::int32_t>(places, "batch");
  flight.asked_logits = ctx.allocate(logits.dtype(), {std::ssize(places), 1}, "logits");
  ctx.kernels.embedding.forward(ctx.stream, {.index = index.as<std::int32_t>(),
                                             .weight = logits.reshape({all, 1}),
                                             .out = flight.asked_logits});
}

// Selects the token of each row and computes its log-probability as the training loss does.
void ModelRunner::select(const Var& hidden, const BatchInputs& inputs, const BatchValues& values,
                         SelectionOutputs& outputs, StepFlight* flight) {
  Context& ctx = model_.ctx();
  const ModelStage& stage = model_.stage();
  const SamplingKernels& sampling = ctx.kernels.sampling;
  const std::int64_t rows = values.shape.selects;
  if (rows == 0) return;
  Var last{gather_rows(ctx, hidden.tensor, values.last_rows), hidden.placement, -1, nullptr};
  Var entered = enter_tensor_parallel(ctx, stage.final_states(ctx, last), rows);
  Tensor raw = raw_logits(ctx, entered, stage.head());
  Tensor logits = gather_vocabulary(ctx, final_logits(ctx, raw, stage.head()),
                                    model_.options().model.vocab_size);
  if (flight != nullptr && flight->top > 0) {
    find_top_tokens(ctx, raw, logits, stage.head(), outputs.top(rows, flight->top));
    gather_asked(logits, *flight);
  }
  auto* tokens = outputs.tokens.as<std::int32_t>();
  const View counts = values.shape.penalises ? counts_.view() : View();
  sampling.select(ctx.stream, {.logits = logits,
                               .rules = inputs.rules,
                               .edits = inputs.edits,
                               .counts = counts,
                               .tokens = tokens,
                               .status = outputs.status.as<std::int32_t>(),
                               .all_greedy = values.shape.all_greedy});
  sampling.record(ctx.stream, {.tokens = tokens,
                               .slots = inputs.slots,
                               .rules = inputs.rules,
                               .n = rows,
                               .last = last_tokens_.as<std::int32_t>(),
                               .counts = counts});
  if (flight != nullptr && flight->wants_logits) flight->logits = download_wide(ctx, logits);
  token_losses(ctx, raw, tokens, stage.head(), outputs.losses.rows(0, rows));
}

void ModelRunner::score_prompts(const Var& hidden, const BatchValues& values, StepFlight& flight) {
  for (std::size_t i = 0; i < flight.results.runs.size(); ++i) {
    const ScheduledRun& run = flight.results.runs[i];
    const Sequence& sequence = *run.sequence;
    if (!sequence.asked().prompt_logprobs || run.begin >= sequence.prompt_tokens - 1) continue;
    const std::int64_t row = values.runs[i].q_begin;
    Var rows{hidden.tensor.rows(row, row + run.count), hidden.placement, -1, nullptr};
    flight.results.prompts[i] = score_prompt(model_, rows, run);
  }
}

void ModelRunner::compute(const BatchInputs& inputs, const BatchValues& values,
                          const MicroBatch& batch, const DecodeStep& step,
                          SelectionOutputs& outputs, StepFlight* flight) {
  Context& ctx = model_.ctx();
  TapeScope unrecorded(ctx, nullptr);
  ctx.kernels.sampling.resolve(ctx.stream, {.tokens = inputs.tokens.as<std::int32_t>(),
                                            .slots = inputs.token_slots.as<std::int32_t>(),
                                            .n = values.shape.tokens,
                                            .last = last_tokens_.as<std::int32_t>()});
  const AdapterScope adapters(ctx, options_.chosen_adapters ? &values.adapter_rows : nullptr);
  Var hidden = hidden_states(batch, step);
  if (!model_.stage().range().last) return;
  if (flight != nullptr) score_prompts(hidden, values, *flight);
  select(hidden, inputs, values, outputs, flight);
}

void ModelRunner::replay(BatchValues& values, StepFlight& flight) {
  Context& ctx = model_.ctx();
  values.pad(padded(values.shape), options_.block_tokens);
  std::unique_ptr<Graph>& graph = graphs_[values.shape];
  if (!graph) graph = std::make_unique<Graph>(ctx, values.shape);
  graph->inputs.upload(ctx, values);
  // A step is captured when its shape comes a second time: the first run prepares the kernels.
  if (!std::exchange(graph->ran, true)) {
    graph->batch = make_batch(graph->inputs, values);
    graph->step = make_step(graph->inputs, values);
    bound_keys(graph->step);
    compute(graph->inputs, values, graph->batch, graph->step, graph->outputs, nullptr);
  } else {
    if (!graph->recording) {
      graph->recording = ctx.kernels.device.capture(ctx.stream, [&] {
        compute(graph->inputs, values, graph->batch, graph->step, graph->outputs, nullptr);
      });
    }
    graph->recording->start();
    ++graph_launches_;
  }
  flight.fetch(ctx, graph->outputs, values.shape.selects);
}

// A graph serves all lengths that its block table has room for.
void ModelRunner::bound_keys(DecodeStep& step) const {
  for (AttentionRun& run : step.runs) {
    run.k_count = static_cast<std::int32_t>(step.table_stride * step.block_tokens);
    run.offset = run.k_count - run.q_count;
  }
}

std::unique_ptr<SelectionOutputs> ModelRunner::take_outputs(std::int64_t rows) {
  if (outputs_.empty()) {
    outputs_.push_back(std::make_unique<SelectionOutputs>(model_.ctx(), options_.slots,
                                                          options_.max_top_logprobs));
  }
  std::unique_ptr<SelectionOutputs> outputs = std::move(outputs_.back());
  outputs_.pop_back();
  outputs->arrange(rows);
  return outputs;
}

void ModelRunner::launch(const StepPlan& plan, const std::vector<std::int64_t>& expert_tokens) {
  Context& ctx = model_.ctx();
  copy_blocks(plan);
  copy_slots(plan);
  BatchValues values(plan, options_.block_tokens, dynamic_rope_);
  if (options_.chosen_adapters) {
    values.choose_adapters(plan, model_.options().model.more_loras.size() + 1);
  }
  set_counts(values);
  auto flight = std::make_unique<StepFlight>();
  flight->results.selecting = values.selecting;
  flight->results.runs = plan.runs;
  for (const ScheduledRun& run : plan.runs) {
    flight->results.prompts.push_back({run.sequence->request});
  }
  for (const Sequence* sequence : values.selecting) {
    // Log-probabilities of any tokens follow from that of the likeliest.
    const std::int64_t least = sequence->asked().logprob_tokens.empty() ? 0 : 1;
    flight->top = std::max({flight->top, sequence->asked().top_logprobs, least});
    flight->wants_logits = flight->wants_logits || sequence->asked().wants_logits();
  }
  if (replayable(plan)) {
    replay(values, *flight);
  } else {
    flight->outputs = take_outputs(values.shape.selects);
    flight->inputs = BatchInputs(ctx, values.shape);
    flight->inputs.upload(ctx, values);
    MicroBatch batch = make_batch(flight->inputs, values);
    batch.layout.expert_tokens = expert_tokens;
    compute(flight->inputs, values, batch, make_step(flight->inputs, values), *flight->outputs,
            flight.get());
    bool selects = model_.stage().range().last && values.shape.selects > 0;
    if (selects) flight->fetch(ctx, *flight->outputs, values.shape.selects);
  }
  flights_.push_back(std::move(flight));
}

AdapterRows ModelRunner::no_adapter_rows() const {
  AdapterRows none;
  none.of.resize(model_.options().model.more_loras.size() + 1);
  return none;
}

void ModelRunner::warm_up(std::int64_t tokens, std::int64_t selections) {
  Context& ctx = model_.ctx();
  BatchValues values;
  values.adapter_rows = no_adapter_rows();
  BatchShape shape{.tokens = tokens,
                   .runs = 1,
                   .table_stride = 1,
                   .selects = selections,
                   .penalises = options_.token_counts,
                   .all_greedy = false};
  values.pad(shape, options_.block_tokens);
  values.shape = shape;
  values.tokens.resize(static_cast<std::size_t>(tokens), 0);
  values.token_slots.resize(values.tokens.size(), -1);
  values.positions.resize(values.tokens.size(), 0);
  values.samples.resize(values.tokens.size(), 0);
  values.write_rows.resize(values.tokens.size(), 0);
  values.rules.resize(static_cast<std::size_t>(selections));
  values.slots.resize(values.rules.size(), -1);
  values.last_rows.resize(values.rules.size(), 0);
  values.runs.front().q_count = values.runs.front().k_count = static_cast<std::int32_t>(tokens);
  values.sequences = {{0, tokens, 1}};
  BatchInputs inputs(ctx, shape);
  inputs.upload(ctx, values);
  SelectionOutputs outputs(ctx, selections, 0);
  outputs.arrange(selections);
  MicroBatch batch = make_batch(inputs, values);
  std::int64_t experts = model_.mesh().group(MeshGroup::kExperts).size();
  if (experts > 1) batch.layout.expert_tokens.assign(static_cast<std::size_t>(experts), tokens);
  compute(inputs, values, batch, make_step(inputs, values), outputs, nullptr);
  if (model_.stage().range().last) ctx.download<std::int32_t>(outputs.words);
}

void ModelRunner::launch_idle(const std::vector<std::int64_t>& expert_tokens) {
  Context& ctx = model_.ctx();
  TapeScope unrecorded(ctx, nullptr);
  BatchShape one;
  one.tokens = one.runs = one.table_stride = one.selects = 1;
  BatchValues values;
  values.pad(one, options_.block_tokens);
  BatchInputs inputs(ctx, one);
  inputs.upload(ctx, values);
  MicroBatch batch = make_batch(inputs, values);
  batch.layout.expert_tokens = expert_tokens;
  const AdapterRows none = no_adapter_rows();
  const AdapterScope adapters(ctx, options_.chosen_adapters ? &none : nullptr);
  hidden_states(batch, make_step(inputs, values));
}

StepResults ModelRunner::finish() {
  std::unique_ptr<StepFlight> flight = std::move(flights_.front());
  flights_.erase(flights_.begin());
  Group& pp = model_.mesh().pp().host();
  StepResults results = flight->finish(model_.options().model.vocab_size);
  if (flight->outputs) outputs_.push_back(std::move(flight->outputs));
  share_results(pp, model_.stage().range().last, results);
  return results;
}

}  // namespace bev
