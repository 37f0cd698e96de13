#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "base/clock.h"

namespace bev {

namespace {

// Upper bounds of the buckets, as vLLM has them.
const std::vector<double> kFirstTokenBounds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08,
                                               0.1,   0.25,  0.5,  0.75, 1,    2.5,  5,
                                               7.5,   10,    20,   40,   80,   160,  640};
const std::vector<double> kBetweenTokensBounds = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.4,   0.5,    0.75,  1,    2.5,   5,    7.5,   10,  20,   40,  80};
const std::vector<double> kRequestBounds = {0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,
                                            10,   15,   20,  30,  40,  50,  60, 120, 240, 480, 960};
const std::vector<double> kTokenBounds = {1,   2,    5,    10,   20,    50,    100,   200,
                                          500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
const std::vector<double> kSmallBounds = {1, 2, 5, 10, 20, 50, 100};

class Histogram {
 public:
  explicit Histogram(const std::vector<double>& bounds)
      : bounds_(&bounds), counts_(bounds.size() + 1) {}

  void add(double value) {
    auto at = std::ranges::lower_bound(*bounds_, value) - bounds_->begin();
    ++counts_[static_cast<std::size_t>(at)];
    sum_ += value;
  }

  void write(std::string& out, std::string_view name, std::string_view label) const {
    auto line = std::back_inserter(out);
    std::int64_t below = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      below += counts_[i];
      std::string bound = i < bounds_->size() ? fmt::format("{}", (*bounds_)[i]) : "+Inf";
      fmt::format_to(line, "{}_bucket{{{},le=\"{}\"}} {}\n", name, label, bound, below);
    }
    fmt::format_to(line, "{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, label, sum_, name, label,
                   below);
  }

 private:
  const std::vector<double>* bounds_;
  std::vector<std::int64_t> counts_;
  double sum_ = 0;
};

std::string escaped(std::string_view label) {
  std::string out;
  for (char c : label) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::string_view finished_reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kCancelled:
    case FinishReason::kDeadline:
      return "abort";
    default:
      return name_of(reason);
  }
}

}  // namespace

struct Metrics::State {
  mutable std::mutex mutex;
  std::string label;  // model_name="..."
  std::int64_t waiting = 0, running = 0;
  std::int64_t prompt_tokens = 0, cached_tokens = 0, generation_tokens = 0, dropped = 0;
  std::map<std::string, std::int64_t> successes;  // by finished_reason
  std::map<std::tuple<std::string, std::string, int>, std::int64_t> http;
  Histogram first_token{kFirstTokenBounds}, between_tokens{kBetweenTokensBounds},
      per_token{kBetweenTokensBounds}, end_to_end{kRequestBounds}, queue{kRequestBounds},
      prefill{kRequestBounds}, decode{kRequestBounds}, inference{kRequestBounds},
      prompt_lengths{kTokenBounds}, output_lengths{kTokenBounds}, max_tokens{kTokenBounds},
      choices{kSmallBounds}, http_seconds{kRequestBounds};
};

Metrics::Metrics(std::string model_name) : state_(std::make_unique<State>()) {
  state_->label = fmt::format("model_name=\"{}\"", escaped(model_name));
  // Counters exist before the first event, so that rates have a beginning.
  for (const char* reason : {"stop", "length", "abort", "error"}) state_->successes[reason] = 0;
}
Metrics::~Metrics() = default;

void Metrics::accepted() {
  std::lock_guard lock(state_->mutex);
  ++state_->waiting;
}

void Metrics::started(CallTimes& times) {
  std::lock_guard lock(state_->mutex);
  --state_->waiting;
  ++state_->running;
  if (times.started > 0) return;
  times.started = monotonic_seconds();
  state_->queue.add(times.started - times.arrival);
}

void Metrics::ended(bool had_started) {
  std::lock_guard lock(state_->mutex);
  --(had_started ? state_->running : state_->waiting);
}

void Metrics::token(CallTimes& times) {
  double now = monotonic_seconds();
  std::lock_guard lock(state_->mutex);
  ++state_->generation_tokens;
  if (times.first_token == 0) {
    times.first_token = now;
    state_->first_token.add(now - times.arrival);
  } else {
    state_->between_tokens.add(now - times.last_token);
  }
  times.last_token = now;
}

void Metrics::finished(const CallTimes& times, FinishReason reason, std::int64_t prompt_tokens,
                       std::int64_t cached_tokens, std::int64_t output_tokens) {
  const double now = monotonic_seconds();
  std::lock_guard lock(state_->mutex);
  State& state = *state_;
  ++state.successes[std::string(finished_reason(reason))];
  state.prompt_tokens += prompt_tokens;
  state.cached_tokens += cached_tokens;
  state.prompt_lengths.add(static_cast<double>(prompt_tokens));
  state.output_lengths.add(static_cast<double>(output_tokens));
  state.end_to_end.add(now - times.arrival);
  if (times.started > 0) state.inference.add(now - times.started);
  if (times.first_token == 0) return;
  if (times.started > 0) state.prefill.add(times.first_token - times.started);
  state.decode.add(times.last_token - times.first_token);
  if (output_tokens > 1) {
    state.per_token.add((times.last_token - times.first_token) /
                        static_cast<double>(output_tokens - 1));
  }
}

void Metrics::params(std::int64_t n, std::int64_t max_tokens) {
  std::lock_guard lock(state_->mutex);
  state_->choices.add(static_cast<double>(n));
  state_->max_tokens.add(static_cast<double>(max_tokens));
}

void Metrics::http(std::string_view method, std::string_view handler, int status, double seconds) {
  std::lock_guard lock(state_->mutex);
  ++state_->http[{std::string(method), std::string(handler), status}];
  state_->http_seconds.add(seconds);
}

void Metrics::dropped() {
  std::lock_guard lock(state_->mutex);
  ++state_->dropped;
}

std::int64_t Metrics::waiting() const {
  std::lock_guard lock(state_->mutex);
  return state_->waiting;
}

std::int64_t Metrics::running() const {
  std::lock_guard lock(state_->mutex);
  return state_->running;
}

namespace {

class PrometheusText {
 public:
  explicit PrometheusText(std::string label) : label_(std::move(label)) {}

  void gauge(std::string_view name, std::string_view help, double value) {
    head(name, help, "gauge");
    add(name, label_, value);
  }
  void counter(std::string_view name, std::string_view help, double value) {
    head(name, help, "counter");
    add(name, label_, value);
  }
  void head(std::string_view name, std::string_view help, std::string_view type) {
    fmt::format_to(std::back_inserter(out_), "# HELP bevatron:{} {}\n# TYPE bevatron:{} {}\n", name,
                   help, name, type);
  }
  void add(std::string_view name, std::string_view labels, double value) {
    fmt::format_to(std::back_inserter(out_), "bevatron:{}{{{}}} {}\n", name, labels, value);
  }
  void histogram(std::string_view name, std::string_view help, const Histogram& values) {
    head(name, help, "histogram");
    values.write(out_, fmt::format("bevatron:{}", name), label_);
  }

  const std::string& label() const { return label_; }
  std::string take() { return std::move(out_); }

 private:
  std::string label_, out_;
};

void write_engine(PrometheusText& out, const EngineSnapshot& engine) {
  const BlockUsage& blocks = engine.blocks;
  auto real = [](std::int64_t value) { return static_cast<double>(value); };
  out.gauge("kv_cache_usage_perc", "Share of the KV cache's blocks in use; 1 means all.",
            blocks.total > 0 ? real(blocks.used) / real(blocks.total) : 0);
  out.gauge("kv_cache_blocks_used", "Blocks of the KV cache that sequences hold.",
            real(blocks.used));
  out.gauge("kv_cache_blocks_cached", "Free blocks that the prefix cache can still find.",
            real(blocks.cached));
  out.gauge("kv_cache_blocks_total", "Blocks of the KV cache.", real(blocks.total));
  const EngineStatistics& sums = engine.statistics;
  out.counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
              real(sums.prefix_queries));
  out.counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
              real(sums.prefix_hits));
  out.counter("num_preemptions_total", "Sequences that lost their blocks and were computed anew.",
              real(sums.preemptions));
  out.counter("engine_steps_total", "Steps of the engine.", real(sums.steps));
  out.counter("iteration_tokens_sum_total", "Tokens computed in steps, of prompts and new ones.",
              real(sums.tokens_computed));
  out.gauge("engine_sleep_state", "1 while the engine is paused.", engine.paused ? 1 : 0);
  out.gauge("weights_version", "Version of the weights.", real(engine.weights_version));
}

}  // namespace

std::string Metrics::text(const EngineSnapshot& engine) const {
  std::lock_guard lock(state_->mutex);
  const State& state = *state_;
  auto real = [](std::int64_t value) { return static_cast<double>(value); };
  PrometheusText out(state.label);
  out.gauge("num_requests_running", "Requests that the engine computes.", real(state.running));
  out.gauge("num_requests_waiting", "Requests that wait.", real(state.waiting));
  write_engine(out, engine);
  out.counter("prompt_tokens_total", "Prompt tokens of finished requests.",
              real(state.prompt_tokens));
  out.counter("prompt_tokens_cached_total", "Those found in the prefix cache.",
              real(state.cached_tokens));
  out.counter("generation_tokens_total", "Tokens generated.", real(state.generation_tokens));
  out.counter("connections_dropped_total",
              "Answers whose client closed the connection or read nothing.", real(state.dropped));
  out.head("request_success_total", "Finished requests.", "counter");
  for (const auto& [reason, count] : state.successes) {
    out.add("request_success_total", fmt::format("{},finished_reason=\"{}\"", state.label, reason),
            real(count));
  }
  out.head("http_requests_total", "Answers by route and status.", "counter");
  for (const auto& [key, count] : state.http) {
    const auto& [method, handler, status] = key;
    out.add("http_requests_total",
            fmt::format("{},method=\"{}\",handler=\"{}\",status=\"{}\"", state.label,
                        escaped(method), escaped(handler), status),
            real(count));
  }
  out.histogram("http_request_duration_seconds", "From a request to the end of its answer.",
                state.http_seconds);
  out.histogram("time_to_first_token_seconds", "From a request to its first token.",
                state.first_token);
  out.histogram("inter_token_latency_seconds", "Between the tokens of a request.",
                state.between_tokens);
  out.histogram("request_time_per_output_token_seconds", "Mean time per token after the first.",
                state.per_token);
  out.histogram("e2e_request_latency_seconds", "From a request to its last token.",
                state.end_to_end);
  out.histogram("request_queue_time_seconds", "From a request to its first step.", state.queue);
  out.histogram("request_prefill_time_seconds", "From the first step to the first token.",
                state.prefill);
  out.histogram("request_decode_time_seconds", "From the first token to the last.", state.decode);
  out.histogram("request_inference_time_seconds", "From the first step to the end.",
                state.inference);
  out.histogram("request_prompt_tokens", "Prompt tokens of a request.", state.prompt_lengths);
  out.histogram("request_generation_tokens", "Tokens generated for a request.",
                state.output_lengths);
  out.histogram("request_params_n", "Choices asked for.", state.choices);
  out.histogram("request_params_max_tokens", "Most tokens asked for.", state.max_tokens);
  return out.take();
}

}  // namespace bev
