#include "infer/load_test.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "base/clock.h"
#include "base/divide.h"
#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"
#include "infer/progress_line.h"
#include "infer/shared_numbers.h"
#include "kernels/device.h"

namespace bev {

namespace {

// Prompts that no request of a load has.
constexpr std::int64_t kSharedPrompt = -1, kWarmUpPrompt = -2;

std::int32_t random_token(std::uint64_t seed, std::int64_t prompt, std::int64_t position,
                          std::int64_t vocabulary) {
  std::uint64_t key = mix_bits(seed, hash_name("load prompt"));
  auto low = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
  PhiloxCounter bits = philox({low(position), low(prompt), low(prompt >> 32), 0}, key);
  std::uint64_t wide = std::uint64_t{bits[0]} << 32 | bits[1];
  return static_cast<std::int32_t>(wide % static_cast<std::uint64_t>(vocabulary));
}

std::int64_t vocabulary_of(InferenceEngine& engine) {
  return engine.model().options().model.vocab_size;
}

// A request of any length; all of these have the same prompt.
Request filler_request(InferenceEngine& engine, const LoadOptions& options, std::int64_t input,
                       std::int64_t output) {
  LoadOptions shape = options;
  shape.input_tokens = input;
  shape.output_tokens = output;
  shape.shared_prefix_tokens = 0;
  return load_request(shape, vocabulary_of(engine), kWarmUpPrompt);
}

class NoSink : public RequestSink {};

}  // namespace

std::int64_t LoadOptions::width(std::int64_t max_sequences) const {
  return std::min({requests, max_sequences, concurrency > 0 ? concurrency : requests});
}

Request load_request(const LoadOptions& options, std::int64_t vocabulary, std::int64_t index) {
  Request request;
  request.sampling = options.sampling;
  request.max_new_tokens = options.output_tokens;
  request.ignore_end = true;
  request.stream = index;
  for (std::int64_t at = 0; at < options.input_tokens; ++at) {
    std::int64_t prompt = at < options.shared_prefix_tokens ? kSharedPrompt : index;
    request.prompt.push_back(random_token(options.sampling.seed, prompt, at, vocabulary));
  }
  return request;
}

std::vector<double> arrival_times(const LoadOptions& options) {
  std::vector<double> times(static_cast<std::size_t>(options.requests));
  std::uint64_t key = mix_bits(options.sampling.seed, hash_name("load arrivals"));
  for (std::size_t i = 1; i < times.size() && options.rate > 0; ++i) {
    double uniform = uniform_of(philox({static_cast<std::uint32_t>(i), 0, 0, 0}, key)[0]);
    times[i] = times[i - 1] - std::log(uniform) / options.rate;
  }
  return times;
}

namespace {

// Submits requests as they are due, and notes when their tokens come.
class LoadRun : public RequestSink {
 public:
  LoadRun(InferenceEngine& engine, const LoadOptions& options, bool quiet)
      : engine_(engine),
        options_(options),
        world_(engine.model().mesh().world().host()),
        arrivals_(arrival_times(options)),
        speaks_(!quiet && world_.rank() == 0),
        progress_("tokens", options.requests * options.output_tokens),
        records_(arrivals_.size()) {}

  LoadResult run() {
    const EngineStatistics before = engine_.statistics();
    world_.barrier("start of the load");
    start_ = monotonic_seconds();
    bool busy = false;
    while (submitted_ < options_.requests || busy) {
      for (std::int64_t count = due(busy); count > 0; --count) submit();
      step_time_.reset();
      busy = engine_.step(*this);
      if (speaks_) progress_.advance(tokens_, tokens_);
    }
    LoadResult result{std::move(records_), difference(engine_.statistics(), before)};
    gather(result);
    return result;
  }

  void on_token(const TokenEvent& event) override {
    // The tokens of a step come together.
    if (!step_time_) step_time_ = monotonic_seconds() - start_;
    record(event.request).token_times.push_back(*step_time_);
    ++tokens_;
  }
  void on_finished(RequestResult result) override {
    ++finished_;
    RequestRecord& at = record(result.id);
    const SequenceResult& sequence = result.sequences.front();
    if (!sequence.error.empty()) log_error(sequence.error);
    at.cached_tokens = result.cached_tokens;
    at.completed = sequence.finish == FinishReason::kLength &&
                   std::ssize(sequence.tokens) == options_.output_tokens;
  }

 private:
  RequestRecord& record(RequestId id) { return records_[static_cast<std::size_t>(id - first_id_)]; }

  void submit() {
    RequestId id = engine_.submit(load_request(options_, vocabulary_of(engine_), submitted_));
    if (submitted_ == 0) first_id_ = id;
    auto index = static_cast<std::size_t>(submitted_++);
    records_[index].arrival = options_.rate > 0 ? arrivals_[index] : monotonic_seconds() - start_;
  }

  // How many requests arrive before the next step. World rank 0 decides.
  std::int64_t due(bool busy) {
    if (options_.closed()) return options_.requests - submitted_;
    std::int64_t count = world_.rank() == 0 ? due_now(busy) : 0;
    world_.broadcast({&count, Dtype::kI64, {1}}, 0, "requests that arrive").wait();
    return count;
  }
  std::int64_t due_now(bool busy) {
    if (options_.concurrency > 0) {
      return std::min(finished_ + options_.concurrency, options_.requests) - submitted_;
    }
    if (submitted_ == options_.requests) return 0;
    // Other ranks wait for this one, but not for long.
    constexpr double kLongestSleep = 1;
    double next = arrivals_[static_cast<std::size_t>(submitted_)];
    double wait = std::min(next - (monotonic_seconds() - start_), kLongestSleep);
    if (!busy && wait > 0) std::this_thread::sleep_for(std::chrono::duration<double>(wait));
    auto come = std::ranges::upper_bound(arrivals_, monotonic_seconds() - start_);
    return std::max<std::int64_t>(come - arrivals_.begin() - submitted_, 0);
  }

  static EngineStatistics difference(EngineStatistics after, const EngineStatistics& before) {
    for (auto field : kCounters) after.*field -= before.*field;
    return after;
  }
  static void pass(SharedNumbers& numbers, LoadResult& result) {
    for (auto field : kCounters) numbers.pass(result.statistics.*field);
    numbers.pass_list(result.requests, [&](RequestRecord& at) {
      numbers.pass(at.arrival);
      numbers.pass(at.cached_tokens);
      numbers.pass(at.completed);
      numbers.pass_list(at.token_times);
    });
  }

  // The first rank of each replica knows when its tokens came; world rank 0 collects all.
  void gather(LoadResult& result) {
    const MeshShape& mesh = engine_.model().mesh().shape();
    for (std::int64_t dp = 1; dp < mesh.dp; ++dp) {
      auto source = static_cast<int>(rank_of(mesh, {0, 0, dp, 0}));
      if (world_.rank() == source) {
        SharedNumbers numbers(true);
        pass(numbers, result);
        numbers.send(world_, 0);
      }
      if (world_.rank() != 0) continue;
      SharedNumbers numbers(false);
      numbers.receive(world_, source);
      LoadResult theirs;
      pass(numbers, theirs);
      for (std::size_t i = 0; i < theirs.requests.size(); ++i) {
        bool computed_there =
            theirs.requests[i].completed || !theirs.requests[i].token_times.empty();
        if (computed_there) result.requests[i] = std::move(theirs.requests[i]);
      }
      for (auto field : kCounters) {
        std::int64_t &sum = result.statistics.*field, part = theirs.statistics.*field;
        sum = field == &EngineStatistics::steps ? std::max(sum, part) : sum + part;
      }
    }
  }

  static constexpr std::int64_t EngineStatistics::*kCounters[] = {
      &EngineStatistics::steps,
      &EngineStatistics::tokens_computed,
      &EngineStatistics::tokens_generated,
      &EngineStatistics::preemptions,
      &EngineStatistics::prefix_queries,
      &EngineStatistics::prefix_hits,
      &EngineStatistics::graph_launches};

  InferenceEngine& engine_;
  const LoadOptions& options_;
  Group& world_;
  std::vector<double> arrivals_;
  bool speaks_;
  ProgressLine progress_;
  std::vector<RequestRecord> records_;
  double start_ = 0;
  std::optional<double> step_time_;  // of the tokens of the current step
  RequestId first_id_ = 0;
  std::int64_t submitted_ = 0, finished_ = 0, tokens_ = 0;
};

}  // namespace

LoadResult run_load(InferenceEngine& engine, const LoadOptions& options, bool quiet) {
  engine.reset_prefix_cache();
  return LoadRun(engine, options, quiet).run();
}

// Graphs are by padded numbers of sequences and of blocks, and exist after the second step of a
// shape: sequences end one after the other, at the beginning and at the end of the longest context.
void warm_up_load(InferenceEngine& engine, const LoadOptions& options, std::int64_t requests) {
  constexpr std::int64_t kFirst = 8, kLast = 56;
  const std::int64_t longest = std::min(kLast, options.output_tokens);
  const std::int64_t shortest = std::min(kFirst, longest);
  auto wave = [&](std::int64_t input) {
    for (std::int64_t i = 0; i < requests; ++i) {
      std::int64_t more = (longest - shortest) * i / std::max<std::int64_t>(requests - 1, 1);
      engine.submit(filler_request(engine, options, input, shortest + more));
    }
    NoSink sink;
    engine.run(sink);
  };
  if (requests == 0) return;
  wave(options.input_tokens);
  std::int64_t late = options.output_tokens - longest;
  if (late > longest) wave(options.input_tokens + late);
}

std::optional<DeviceIdle> idle_of(const std::vector<DeviceSpan>& spans, std::int64_t steps) {
  if (spans.empty()) return std::nullopt;
  std::vector<std::int64_t> gaps;
  std::int64_t end = spans.front().begin_ns;
  for (const DeviceSpan& span : spans) {
    if (span.begin_ns > end) gaps.push_back(span.begin_ns - end);
    end = std::max(end, span.end_ns);
  }
  auto sum = [](auto from, auto to) {
    return static_cast<double>(std::accumulate(from, to, std::int64_t{0}));
  };
  // There is one gap for each step; whichever they are, they are no longer than the longest.
  std::ranges::sort(gaps, std::ranges::greater());
  auto boundaries = gaps.begin() + std::min(steps, std::ssize(gaps));
  auto whole = static_cast<double>(std::max<std::int64_t>(end - spans.front().begin_ns, 1));
  return DeviceIdle{sum(gaps.begin(), gaps.end()) / whole, sum(gaps.begin(), boundaries) / whole};
}

namespace {

// Counts the tokens of the sequence that has fewest.
class LeastTokens : public RequestSink {
 public:
  LeastTokens(RequestId first, std::int64_t count)
      : first_(first), tokens_(static_cast<std::size_t>(count)) {}
  void on_token(const TokenEvent& event) override {
    ++tokens_[static_cast<std::size_t>(event.request - first_)];
  }
  void on_finished(RequestResult) override { ++finished_; }
  std::int64_t least() const { return std::ranges::min(tokens_); }
  bool all_run() const { return finished_ == 0; }

 private:
  RequestId first_;
  std::vector<std::int64_t> tokens_;
  std::int64_t finished_ = 0;
};

}  // namespace

std::optional<DeviceIdle> trace_device_idle(InferenceEngine& engine, const LoadOptions& options) {
  constexpr std::int64_t kSettled = 3, kTraced = 8;
  const DeviceKernels& device = engine.model().ctx().kernels.device;
  std::unique_ptr<DeviceTrace> trace = device.trace != nullptr ? device.trace() : nullptr;
  if (!trace) return std::nullopt;
  const std::int64_t width = options.width(engine.options().max_sequences);
  // The sequences that begin first go on until the last one is there.
  std::int64_t prefill_steps =
      ceil_div(width * options.input_tokens, engine.options().max_step_tokens);
  std::int64_t output = std::min(options.output_tokens, prefill_steps + kSettled + 2 * kTraced);
  std::vector<RequestId> ids;
  for (std::int64_t i = 0; i < width; ++i) {
    ids.push_back(engine.submit(filler_request(engine, options, options.input_tokens, output)));
  }
  LeastTokens sink(ids.front(), width);
  std::int64_t traced = -1;  // steps; -1: before
  bool complete = false;
  while (engine.step(sink) && sink.all_run() && !complete) {
    if (traced < 0 && sink.least() < kSettled) continue;
    if (traced < 0) trace->started();
    complete = ++traced == kTraced;
  }
  if (traced >= 0) trace->stopped();
  for (RequestId id : ids) engine.cancel(id);
  engine.run(sink);
  if (!complete) return std::nullopt;
  return idle_of(trace->take(), kTraced);
}

}  // namespace bev
