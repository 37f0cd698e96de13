#include "infer/generator.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <map>

#include "autograd/recompute.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/device.h"
#include "kernels/elementwise.h"
#include "kernels/loss.h"
#include "models/rope.h"
#include "ops/loss.h"

namespace bev {

namespace {

// Sequences whose logits exist at a time.
constexpr std::size_t kHeadRows = 64;

void* element(const View& view, std::int64_t index) {
  return static_cast<std::byte*>(view.data) + static_cast<std::size_t>(index) * size_of(view.dtype);
}

// Rows of x [T, H] one after the other; one copy for each stretch of neighbours.
Tensor gather_rows(Context& ctx, const Tensor& x, std::span<const std::int64_t> rows) {
  std::int64_t width = x.shape()[1];
  Tensor out =
      ctx.allocate(x.dtype(), {static_cast<std::int64_t>(rows.size()), width}, "activations");
  for (std::size_t begin = 0; begin < rows.size();) {
    std::size_t end = begin + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    ctx.kernels.elementwise.copy_rows(
        ctx.stream, {.src = element(x, rows[begin] * width),
                     .dst = element(out, static_cast<std::int64_t>(begin) * width),
                     .dtype = x.dtype(),
                     .rows = static_cast<std::int64_t>(end - begin),
                     .columns = width,
                     .src_stride = width,
                     .dst_stride = width});
    begin = end;
  }
  return out;
}

// Structs that a kernel writes, one for each row.
template <class T>
class Records {
 public:
  Records(Context& ctx, std::size_t count)
      : ctx_(ctx),
        count_(count),
        bytes_(ctx.allocate(Dtype::kU8, {static_cast<std::int64_t>(count * sizeof(T))}, "logits")) {
  }
  T* on_device() const { return reinterpret_cast<T*>(bytes_.as<std::uint8_t>()); }
  std::vector<T> fetch() const {
    std::vector<T> out(count_);
    ctx_.kernels.device.fetch(ctx_.stream, bytes_, out.data()).wait();
    return out;
  }

 private:
  Context& ctx_;
  std::size_t count_;
  Tensor bytes_;
};

void check_prompt(const ModelConfig& model, std::span<const std::int32_t> prompt, std::size_t index,
                  std::int64_t max_new_tokens) {
  auto length = static_cast<std::int64_t>(prompt.size());
  BEV_CHECK(length > 0, ErrorKind::kInput, "generate: prompt ", index, " is empty");
  for (std::int32_t token : prompt) {
    BEV_CHECK(token >= 0 && token < model.vocab_size, ErrorKind::kInput, "generate: prompt ", index,
              " holds token ", token, ", outside of the vocabulary of ", model.vocab_size);
  }
  bool learned = model.position_embedding_type == PositionKind::kLearned;
  std::int64_t most =
      learned ? model.max_position_embeddings : std::numeric_limits<std::int32_t>::max();
  if (length + max_new_tokens <= most) return;
  std::string cure = length < most
                         ? concat("--max-new-tokens may be at most ", most - length, " with it")
                         : concat("shorten it below ", most, " tokens");
  BEV_FAIL(ErrorKind::kConfig, "--max-new-tokens: prompt ", index, " of ", length, " tokens and ",
           max_new_tokens, " new ones exceed the ", most,
           learned ? " learned positions of the model (max_position_embeddings); " : " possible; ",
           cure);
}

}  // namespace

Generator::Generator(RankModel& model) : model_(model) {
  const ParallelConfig& parallel = model.options().parallel;
  bool plain = parallel.context_parallel_size == 1 && !parallel.sequence_parallel &&
               model.pipeline().shape.chunks == 1;
  BEV_CHECK(plain, ErrorKind::kConfig,
            "generate: tokens cannot be cut over ranks, nor a rank have several stages "
            "(inference_layout gives a layout that fits)");
}

Generator::~Generator() = default;

void check_generation(const ModelConfig& model, std::span<const std::vector<std::int32_t>> prompts,
                      const GenerationOptions& options) {
  BEV_CHECK(model.causal, ErrorKind::kConfig,
            "generate: the model is bidirectional; a decoder is needed");
  BEV_CHECK(options.max_new_tokens >= 0, ErrorKind::kConfig,
            "--max-new-tokens: ", options.max_new_tokens, " is negative");
  check_sampling(options.sampling);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    check_prompt(model, prompts[i], i, options.max_new_tokens);
  }
}

std::vector<LayerState> Generator::make_cache(std::int64_t rows, std::size_t sequences) {
  Context& ctx = model_.ctx();
  std::vector<LayerState> cache;
  auto count = static_cast<std::int64_t>(sequences);
  for (const StateSpec& spec : model_.stage().states(model_.mesh().shape().tp)) {
    auto allocate = [&](Dtype dtype, std::int64_t count_rows, std::int64_t columns) {
      return columns > 0 ? ctx.allocate(dtype, {count_rows, columns}, "kv cache") : Tensor();
    };
    LayerState& state = cache.emplace_back();
    state.kv.keys = allocate(ctx.dtype, rows, spec.key_columns);
    state.kv.values = allocate(ctx.dtype, rows, spec.value_columns);
    state.sequences = allocate(ctx.wide(), count, spec.sequence_elements);
  }
  return cache;
}

// All ranks take the same prompts together, so the largest stage counts.
std::int64_t Generator::bytes_per_token() {
  std::int64_t bytes = 0;
  for (const StateSpec& spec : model_.stage().states(model_.mesh().shape().tp)) {
    bytes += spec.bytes_per_token(model_.options().dtype);
  }
  model_.mesh()
      .pp()
      .host()
      .all_reduce({&bytes, Dtype::kI64, {1}}, Reduction::kMax, "state of a token")
      .wait();
  return std::max<std::int64_t>(bytes, 1);
}

struct Generator::StepValues {
  std::vector<std::int32_t> tokens, positions, samples, write_rows, key_counts;
};

bool Generator::one_token_each(std::span<const Live> live) {
  return std::ranges::all_of(live, [](const Live& at) { return at.pending.size() == 1; });
}

Generator::StepValues Generator::values_of(std::span<const Live> live) {
  StepValues values;
  for (const Live& sequence : live) {
    values.tokens.insert(values.tokens.end(), sequence.pending.begin(), sequence.pending.end());
    auto count = static_cast<std::int64_t>(sequence.pending.size());
    for (std::int64_t at = sequence.length - count; at < sequence.length; ++at) {
      values.positions.push_back(static_cast<std::int32_t>(at));
      values.samples.push_back(static_cast<std::int32_t>(sequence.index));
      values.write_rows.push_back(static_cast<std::int32_t>(sequence.first_row + at));
    }
    values.key_counts.push_back(static_cast<std::int32_t>(sequence.length));
  }
  return values;
}

Generator::Step Generator::make_step(std::span<const Live> live) {
  Context& ctx = model_.ctx();
  Step step;
  SequenceLayout& layout = step.batch.layout;
  bool told = one_token_each(live);  // how many keys there are; prompts bring theirs
  for (const Live& sequence : live) {
    auto count = static_cast<std::int64_t>(sequence.pending.size());
    std::int64_t keys = told ? sequence.capacity : sequence.length;
    step.decode.runs.push_back({static_cast<std::int32_t>(layout.tokens),
                                static_cast<std::int32_t>(count), sequence.first_row,
                                static_cast<std::int32_t>(keys),
                                static_cast<std::int32_t>(sequence.length - count)});
    step.decode.slots.push_back(sequence.slot);
    layout.sequences.push_back({layout.tokens, layout.tokens + count, sequence.length});
    layout.tokens += count;
    layout.max_length = std::max(layout.max_length, sequence.length);
    step.last_rows.push_back(layout.tokens - 1);
  }
  StepValues values = values_of(live);
  layout.positions = ctx.upload<std::int32_t>(values.positions, "batch");
  layout.samples = ctx.upload<std::int32_t>(values.samples, "batch");
  layout.sample_positions = layout.positions;
  step.batch.tokens = ctx.upload<std::int32_t>(values.tokens, "batch");
  step.decode.write_rows = ctx.upload<std::int32_t>(values.write_rows, "batch");
  if (told) step.decode.key_counts = ctx.upload<std::int32_t>(values.key_counts, "batch");
  return step;
}

// Frequencies that follow from lengths are known to the host alone. Ranks do not agree on what is
// alive.
bool Generator::recordable(std::span<const Live> live) const {
  return model_.rank().can_capture() && model_.mesh().world().size() == 1 &&
         live.size() <= kHeadRows && !rope_depends_on_length(model_.options().model) &&
         one_token_each(live);
}

const Tensor* Generator::recorded_logits(std::span<const Live> live,
                                         std::vector<LayerState>& cache) {
  std::vector<std::int64_t> first_rows;
  for (const Live& sequence : live) first_rows.push_back(sequence.first_row);
  bool possible = recordable(live);
  if (!possible || first_rows != recorded_.first_rows) {
    recorded_ = {};
    if (possible) recorded_.first_rows = std::move(first_rows);
    return nullptr;
  }
  Context& ctx = model_.ctx();
  Step& step = recorded_.step;
  if (!recorded_.recording) {
    step = make_step(live);
    recorded_.recording = ctx.kernels.device.capture(ctx.stream, [&] {
      recorded_.logits = last_logits(hidden_states(step, cache), step.last_rows);
    });
  }
  StepValues values = values_of(live);
  auto send = [&](const std::vector<std::int32_t>& from, const Tensor& to) {
    ctx.kernels.device.upload(ctx.stream, from.data(), to);
  };
  send(values.tokens, step.batch.tokens);
  send(values.positions, step.batch.layout.positions);
  send(values.samples, step.batch.layout.samples);
  send(values.write_rows, step.decode.write_rows);
  send(values.key_counts, step.decode.key_counts);
  recorded_.recording->start();
  return &recorded_.logits;
}

Tensor Generator::last_logits(const Var& hidden, std::span<const std::int64_t> rows) {
  Context& ctx = model_.ctx();
  const ModelStage& stage = model_.stage();
  Var last{gather_rows(ctx, hidden.tensor, rows), hidden.placement, -1, nullptr};
  Tensor part = stage_logits(ctx, stage, stage.final_states(ctx, last), std::ssize(rows));
  return gather_vocabulary(ctx, std::move(part), model_.options().model.vocab_size);
}

TokenPlace Generator::place_of(const Live& sequence, const GenerationOptions& options) {
  return {options.first_sequence + static_cast<std::int64_t>(sequence.index), sequence.length};
}

void Generator::pick_greedily(const Tensor& logits, std::span<const Live> live,
                              const GenerationOptions& options, std::span<TokenChoice> choices) {
  Context& ctx = model_.ctx();
  Records<RowSummary> rows(ctx, live.size());
  ctx.kernels.loss.summary(ctx.stream, {logits, rows.on_device()});
  const std::vector<RowSummary> found = rows.fetch();
  for (std::size_t i = 0; i < live.size(); ++i) {
    choices[i] = pick_largest(found[i], place_of(live[i], options));
  }
}

void Generator::pick_on_device(const Tensor& logits, std::span<const Live> live,
                               const GenerationOptions& options, std::span<TokenChoice> choices) {
  Context& ctx = model_.ctx();
  const SamplingOptions& sampling = options.sampling;
  if (ctx.kernels.loss.sample == nullptr) return;
  std::vector<double> fractions;
  for (const Live& sequence : live) {
    fractions.push_back(random_fraction(sampling.seed, place_of(sequence, options)));
  }
  Tensor drawn_with = ctx.upload<double>(fractions, "logits");
  Records<RowSummary> rows(ctx, live.size());
  Records<SampledToken> tokens(ctx, live.size());
  ctx.kernels.loss.summary(ctx.stream, {logits, rows.on_device()});
  if (!ctx.kernels.loss.sample(ctx.stream,
                               {.logits = logits,
                                .rows = rows.on_device(),
                                .fractions = drawn_with.as<double>(),
                                .rule = {sampling.temperature, sampling.top_k, sampling.top_p},
                                .tokens = tokens.on_device()})) {
    return;
  }
  const std::vector<RowSummary> found = rows.fetch();
  const std::vector<SampledToken> drawn = tokens.fetch();
  for (std::size_t i = 0; i < live.size(); ++i) {
    choices[i] = pick_drawn(found[i], drawn[i], place_of(live[i], options));
  }
}

void Generator::pick_on_host(const Tensor& logits, std::span<const Live> live,
                             const GenerationOptions& options, std::span<TokenChoice> choices) {
  std::vector<std::exception_ptr> failures(live.size());
  auto columns = static_cast<std::size_t>(model_.options().model.vocab_size);
  auto pick_all = [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> values = model_.ctx().download<T>(logits);
    model_.ctx().stream.pool->run(static_cast<std::int64_t>(live.size()), [&](std::int64_t piece) {
      auto row = static_cast<std::size_t>(piece);
      if (choices[row].token >= 0) return;
      std::span<const T> of_row = std::span<const T>(values).subspan(row * columns, columns);
      try {
        choices[row] = pick_token(of_row, options.sampling, place_of(live[row], options));
      } catch (...) {  // the pool's threads must not throw
        failures[row] = std::current_exception();
      }
    });
  };
  logits.dtype() == Dtype::kF64 ? pick_all(double{}) : pick_all(float{});
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

void Generator::pick(const Tensor& logits, std::span<const Live> live,
                     const GenerationOptions& options, std::span<TokenChoice> choices) {
  if (options.sampling.greedy()) return pick_greedily(logits, live, options, choices);
  pick_on_device(logits, live, options, choices);
  bool left = std::ranges::any_of(choices, [](const TokenChoice& at) { return at.token < 0; });
  if (left) pick_on_host(logits, live, options, choices);
}

std::vector<TokenChoice> Generator::choose(const Var& hidden, std::span<const std::int64_t> rows,
                                           std::span<const Live> live,
                                           const GenerationOptions& options) {
  std::vector<TokenChoice> choices(rows.size());
  for (std::size_t begin = 0; begin < rows.size(); begin += kHeadRows) {
    std::size_t count = std::min(kHeadRows, rows.size() - begin);
    pick(last_logits(hidden, rows.subspan(begin, count)), live.subspan(begin, count), options,
         std::span(choices).subspan(begin, count));
  }
  return choices;
}

std::vector<TokenChoice> Generator::next_tokens(std::span<const Live> live,
                                                std::vector<LayerState>& cache,
                                                const GenerationOptions& options) {
  std::vector<TokenChoice> choices;
  if (const Tensor* logits = recorded_logits(live, cache)) {
    choices.resize(live.size());
    pick(*logits, live, options, choices);
    return choices;
  }
  Step step = make_step(live);
  Var hidden = hidden_states(step, cache);
  if (model_.stage().range().last) choices = choose(hidden, step.last_rows, live, options);
  return share_choices(std::move(choices), live.size());
}

Var Generator::hidden_states(const Step& step, std::vector<LayerState>& cache) {
  Context& ctx = model_.ctx();
  Group& pp = model_.mesh().pp();
  const ModelStage& stage = model_.stage();
  Var input;
  if (!stage.range().first) {
    BoundaryTensor boundary = stage.boundary_in(ctx, step.batch, false).front();
    Tensor received = ctx.allocate(ctx.dtype, boundary.shape, "activations");
    pp.receive(received, pp.rank() - 1, 0, boundary.id.name).wait();
    input = Var{received, boundary.placement, -1, nullptr};
  }
  Var hidden = stage.decode(ctx, step.batch, input, step.decode, cache);
  if (!stage.range().last) pp.send(hidden.tensor, pp.rank() + 1, 0, kHiddenStates.name).wait();
  return hidden;
}

std::vector<TokenChoice> Generator::share_choices(std::vector<TokenChoice> choices,
                                                  std::size_t count) {
  Group& pp = model_.mesh().pp().host();
  if (pp.size() == 1) return choices;
  std::vector<double> values(2 * count);
  for (std::size_t i = 0; i < choices.size(); ++i) {
    values[2 * i] = choices[i].token;
    values[2 * i + 1] = choices[i].logprob;
  }
  View shared{values.data(), Dtype::kF64, {static_cast<std::int64_t>(values.size())}};
  pp.broadcast(shared, pp.size() - 1, "tokens").wait();
  choices.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    choices[i] = {static_cast<std::int32_t>(values[2 * i]), values[2 * i + 1]};
  }
  return choices;
}

void Generator::run(std::vector<Live> live, std::vector<LayerState> cache,
                    const GenerationOptions& options, std::vector<GeneratedSequence>& results,
                    TokenSink* sink) {
  Context& ctx = model_.ctx();
  TapeScope scope(ctx, nullptr);
  std::map<std::size_t, std::vector<std::int32_t>> restarted;
  recorded_ = {};  // of another cache
  while (!live.empty()) {
    std::vector<TokenChoice> choices = next_tokens(live, cache, options);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < live.size(); ++i) {
      Live sequence = live[i];
      GeneratedSequence& result = results[sequence.index];
      result.tokens.push_back(choices[i].token);
      result.logprobs.push_back(choices[i].logprob);
      if (sink) sink->on_token(static_cast<std::int64_t>(sequence.index), choices[i]);
      bool full = static_cast<std::int64_t>(result.tokens.size()) == options.max_new_tokens;
      bool ended = !options.ignore_eos &&
                   std::ranges::find(options.eos, choices[i].token) != options.eos.end();
      if (full || ended) continue;
      ++sequence.length;
      sequence.pending = std::span(result.tokens).last(1);
      if (rope_switches_at(model_.options().model, sequence.length)) {
        // All keys turn by other frequencies from here on: run the whole sequence again.
        std::vector<std::int32_t>& whole = restarted[sequence.index];
        whole.assign(sequence.prompt.begin(), sequence.prompt.end());
        whole.insert(whole.end(), result.tokens.begin(), result.tokens.end());
        sequence.pending = whole;
      }
      live[kept++] = sequence;
    }
    live.resize(kept);
    if (options.interruptible && stop_wanted(sink)) break;
  }
  recorded_ = {};
}

bool Generator::stop_wanted(const TokenSink* sink) {
  Group& world = model_.mesh().world().host();
  std::int64_t stop = sink && sink->wants_stop() ? 1 : 0;
  if (world.size() > 1) world.broadcast(View{&stop, Dtype::kI64, {1}}, 0, "stop").wait();
  return stop != 0;
}

std::vector<GeneratedSequence> Generator::generate(
    std::span<const std::vector<std::int32_t>> prompts, const GenerationOptions& options,
    TokenSink* sink) {
  check_generation(model_.options().model, prompts, options);
  std::vector<GeneratedSequence> results(prompts.size());
  if (options.max_new_tokens == 0) return results;
  std::int64_t most_rows = options.cache_bytes / bytes_per_token();
  for (std::size_t next = 0; next < prompts.size();) {
    std::vector<Live> live;
    std::int64_t rows = 0;
    while (next < prompts.size()) {
      auto length = static_cast<std::int64_t>(prompts[next].size());
      // The last token is never run, so it needs no row.
      std::int64_t needed = length + options.max_new_tokens - 1;
      if (!live.empty() && rows + needed > most_rows) break;
      auto slot = static_cast<std::int64_t>(live.size());
      live.push_back({next, slot, rows, needed, length, prompts[next], prompts[next]});
      rows += needed;
      ++next;
    }
    std::vector<LayerState> cache = make_cache(rows, live.size());
    run(std::move(live), std::move(cache), options, results, sink);
  }
  return results;
}

}  // namespace bev
