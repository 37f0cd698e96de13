#include "serve/http_load.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "infer/progress_line.h"
#include "serve/completion_event.h"
#include "serve/http_client.h"
#include "serve/json_text.h"
#include "serve/sse.h"

namespace bev {

namespace {

// A prompt that no request of a load has.
constexpr std::int64_t kWarmUpPrompt = -2;
constexpr std::int64_t kWarmUpTokens = 56;
// How long a signal or the progress line may wait.
constexpr double kTurnSeconds = 0.1;

// What the server says of the model.
struct Target {
  std::string model;
  std::int64_t vocab_size = 0;
  std::int64_t max_model_len = 0;  // 0: it does not say
};

HttpClientOptions client_options(const HttpLoadOptions& http) {
  std::string base = http.url;
  while (base.ends_with('/')) base.pop_back();
  if (base.ends_with("/v1")) base.resize(base.size() - 3);
  return {.url = base, .verify_tls = http.verify_tls, .timeout_s = http.timeout_s};
}

HttpRequest request_to(const HttpLoadOptions& http, const char* method, const char* path) {
  HttpRequest request{.method = method, .path = path};
  if (!http.api_key.empty()) {
    request.headers.push_back({"Authorization", concat("Bearer ", http.api_key)});
  }
  return request;
}

Target find_target(const HttpLoadOptions& http) {
  HttpClientOptions options = client_options(http);
  const std::string what = concat(options.url, "/v1/models");
  HttpResponse answer = fetch(options, request_to(http, "GET", "/v1/models"));
  BEV_CHECK(answer.status == 200, ErrorKind::kIo, what, ": ",
            http_failure(answer.status, answer.body));
  const auto body = nlohmann::json::parse(answer.body, nullptr, false);
  const bool lists = body.is_object() && body.contains("data") && body["data"].is_array();
  BEV_CHECK(lists, ErrorKind::kIo, what, ": is no list of models");
  std::vector<std::string> names;
  for (const auto& card : body["data"]) {
    if (!card.is_object() || !card.contains("id") || !card["id"].is_string()) continue;
    names.push_back(card["id"]);
    if (!http.model.empty() && names.back() != http.model) continue;
    auto number = [&](const char* key) {
      bool there = card.contains(key) && card[key].is_number_integer();
      return there ? card[key].get<std::int64_t>() : 0;
    };
    Target target{names.back(), number("vocab_size"), number("max_model_len")};
    if (http.vocab_size > 0) target.vocab_size = http.vocab_size;
    BEV_CHECK(target.vocab_size > 0, ErrorKind::kConfig, "--vocab-size: ", what,
              " does not say how many tokens the model knows; give the number");
    return target;
  }
  BEV_CHECK(!http.model.empty(), ErrorKind::kIo, what, ": lists no model");
  BEV_FAIL(ErrorKind::kConfig, "--served-model-name: there is no ", http.model, "; the server has ",
           join(names, ", "));
}

// Each connection is a file: the soft limit of a process is often 1,024.
void allow_open_files(std::int64_t connections) {
  constexpr rlim_t kOtherFiles = 64;
  rlim_t wanted = static_cast<rlim_t>(connections) + kOtherFiles;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Posts requests as they are due, and notes when their tokens come.
class HttpLoadRun final : public HttpClientSink {
 public:
  struct Setting {
    const HttpLoadOptions& http;
    const Target& target;
    const std::string& salt;
    const StopSignal* stop;
    bool quiet;
  };

  HttpLoadRun(const Setting& setting, const LoadOptions& load, std::int64_t first_prompt,
              std::int64_t prompt_step)
      : setting_(setting),
        load_(load),
        first_prompt_(first_prompt),
        prompt_step_(prompt_step),
        arrivals_(arrival_times(load)),
        client_(client_options(setting.http), *this),
        progress_("tokens", load.requests * load.output_tokens),
        records_(arrivals_.size()),
        ended_(arrivals_.size()) {}

  LoadResult run() {
    start_ = monotonic_seconds();
    while (finished_ < load_.requests && !stopped()) {
      // The first are under way while the bodies of many others are made.
      constexpr int kBurst = 16;
      for (int i = 0; i < kBurst && submitted_ < due(); ++i) submit();
      wait();
      if (!setting_.quiet) progress_.advance(done_tokens_, tokens_);
    }
    if (finished_ < load_.requests) cut();
    if (failures_ > kToldFailures && !setting_.quiet) {
      log_warning(concat(failures_ - kToldFailures, " further requests failed"));
    }
    return {.requests = std::move(records_), .statistics = {}};
  }
  // Why the first request failed; "" if none did.
  const std::string& first_failure() const { return first_failure_; }

 private:
  static constexpr std::int64_t kToldFailures = 5;

  // A request under way.
  struct Call {
    std::size_t index = 0;
    int status = 0;
    SseParser events = {};
    std::string body = {};  // of an answer that is no stream of events
    bool complete = false;  // [DONE] came
    std::optional<CompletionUsage> usage = {};
    std::string error = {};
  };

  bool stopped() const { return setting_.stop != nullptr && setting_.stop->received() != 0; }
  double now() const { return monotonic_seconds() - start_; }
  RequestRecord& record(const Call& call) { return records_[call.index]; }

  // Requests that have arrived by now.
  std::int64_t due() const {
    if (load_.concurrency > 0) return std::min(finished_ + load_.concurrency, load_.requests);
    if (load_.rate == 0) return load_.requests;
    return std::ranges::upper_bound(arrivals_, now()) - arrivals_.begin();
  }
  void submit() {
    auto index = static_cast<std::size_t>(submitted_++);
    HttpRequest request = request_to(setting_.http, "POST", "/v1/completions");
    request.headers.push_back({"Content-Type", "application/json"});
    request.body = body(static_cast<std::int64_t>(index));
    records_[index].arrival = load_.rate > 0 ? arrivals_[index] : now();
    calls_[client_.start(std::move(request))].index = index;
  }

  // Serves events until the next request is due, for a while at most.
  void wait() {
    // The client's clock ticks in milliseconds, so it is asked often shortly before.
    constexpr double kTick = 1e-3, kNap = 5e-5;
    if (submitted_ < due()) return client_.run_until(0);
    double left = kTurnSeconds;
    if (load_.rate > 0 && submitted_ < load_.requests) {
      left = std::min(left, arrivals_[static_cast<std::size_t>(submitted_)] - now());
    }
    if (left > 2 * kTick && client_.in_flight() > 0) {
      return client_.run_until(monotonic_seconds() + left - kTick);
    }
    client_.run_until(0);
    bool polls = left < 2 * kTick;
    double nap = std::min(left, polls ? kNap : left - kTick);
    if (nap > 0) std::this_thread::sleep_for(std::chrono::duration<double>(nap));
  }

  // Sampling is said in full: servers have defaults by the model.
  std::string body(std::int64_t index) const {
    Request request =
        load_request(load_, setting_.target.vocab_size, first_prompt_ + prompt_step_ * index);
    const SamplingOptions& sampling = request.sampling;
    JsonText out;
    out.begin_object().add("model", setting_.target.model);
    out.add_json("prompt", json_integers(request.prompt));
    out.add("max_tokens", request.max_new_tokens).add("min_tokens", request.max_new_tokens);
    out.add("ignore_eos", true).add("cache_salt", setting_.salt);
    out.add("temperature", sampling.temperature).add("top_p", sampling.top_p);
    out.add("top_k", sampling.top_k > 0 ? sampling.top_k : -1).add("min_p", sampling.min_p);
    out.add("repetition_penalty", sampling.repetition_penalty);
    out.add("presence_penalty", sampling.presence_penalty);
    out.add("frequency_penalty", sampling.frequency_penalty);
    if (sampling.temperature > 0) {
      out.add("seed", static_cast<std::int64_t>(sampling.seed + static_cast<std::uint64_t>(index)));
    }
    if (setting_.http.stream) {
      out.add("stream", true).add("return_token_ids", true);
      out.add_json("stream_options", R"({"include_usage":true})");
    }
    return out.end_object().take();
  }

  void on_head(ExchangeId id, const HttpResponse& head) override {
    calls_.at(id).status = head.status;
  }
  void on_data(ExchangeId id, std::string_view bytes) override {
    Call& call = calls_.at(id);
    if (call.status != 200 || !setting_.http.stream) {
      call.body.append(bytes);
      return;
    }
    const double time = now();
    call.events.add(bytes, [&](std::string_view data) { take_event(call, data, time); });
  }
  void on_done(ExchangeId id, const std::string& error) override {
    auto found = calls_.find(id);
    finish(found->second, error);
    calls_.erase(found);
    ++finished_;
    // The next one of a closed loop follows at once.
    while (load_.concurrency > 0 && submitted_ < due() && !stopped()) submit();
  }

  void take_event(Call& call, std::string_view data, double time) {
    if (data == "[DONE]") {
      call.complete = true;
      return;
    }
    CompletionEvent event = read_completion_event(data);
    if (event.usage) call.usage = event.usage;
    if (!event.error.empty() && call.error.empty()) call.error = std::move(event.error);
    std::vector<double>& times = record(call).token_times;
    if (times.empty()) times.reserve(static_cast<std::size_t>(load_.output_tokens));
    times.insert(times.end(), static_cast<std::size_t>(event.tokens), time);
    tokens_ += event.tokens;
    done_tokens_ += event.tokens;
  }

  void finish(Call& call, const std::string& error) {
    RequestRecord& at = record(call);
    const std::int64_t streamed = std::ssize(at.token_times);
    if (call.error.empty()) call.error = error;
    if (call.error.empty() && call.status != 200) {
      call.error = http_failure(call.status, call.body);
    }
    if (call.error.empty() && !setting_.http.stream) {
      CompletionEvent answer = read_completion_event(call.body);
      call.usage = answer.usage;
      call.error = std::move(answer.error);
      call.complete = true;
    }
    if (call.usage && call.error.empty()) {
      // Tokens without events of their own came with the last one.
      auto tokens = std::clamp<std::int64_t>(call.usage->completion_tokens, 0, kMostTokens);
      double last = setting_.http.stream && streamed > 0 ? at.token_times.back() : now();
      at.token_times.resize(static_cast<std::size_t>(tokens), last);
      at.cached_tokens = call.usage->cached_tokens;
    }
    if (call.error.empty() && !call.complete) call.error = "the stream ended without [DONE]";
    const std::int64_t tokens = std::ssize(at.token_times);
    if (call.error.empty() && tokens != load_.output_tokens) {
      call.error = concat("the answer has ", tokens, " tokens instead of ", load_.output_tokens);
    }
    at.completed = call.error.empty();
    ended_[call.index] = true;
    tokens_ += tokens - streamed;
    done_tokens_ += std::max<std::int64_t>(load_.output_tokens - streamed, 0);
    if (!at.completed && !cutting_) tell_failure(call);
  }

  void tell_failure(const Call& call) {
    if (failures_++ == 0) first_failure_ = call.error;
    if (failures_ > kToldFailures || setting_.quiet) return;
    log_warning(concat("request ", call.index, " failed: ", call.error));
  }

  // After a signal: ends what is under way, and keeps the records of what has ended.
  void cut() {
    cutting_ = true;
    const std::vector<bool> ended = ended_;
    std::vector<ExchangeId> ids;
    for (const auto& [id, call] : calls_) ids.push_back(id);
    for (ExchangeId id : ids) client_.cancel(id);
    while (client_.in_flight() > 0) client_.run_until(monotonic_seconds() + kTurnSeconds);
    std::vector<RequestRecord> kept;
    for (std::size_t i = 0; i < records_.size(); ++i) {
      if (ended[i]) kept.push_back(std::move(records_[i]));
    }
    records_ = std::move(kept);
  }

  static constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;

  const Setting setting_;
  const LoadOptions load_;
  const std::int64_t first_prompt_, prompt_step_;
  const std::vector<double> arrivals_;
  HttpClient client_;
  ProgressLine progress_;
  std::unordered_map<ExchangeId, Call> calls_;
  std::vector<RequestRecord> records_;
  std::vector<bool> ended_;
  double start_ = 0;
  std::int64_t submitted_ = 0, finished_ = 0, failures_ = 0;
  std::int64_t tokens_ = 0;       // that came
  std::int64_t done_tokens_ = 0;  // the same, and those of requests that failed
  bool cutting_ = false;
  std::string first_failure_;
};

}  // namespace

LoadResult run_http_load(const HttpLoadOptions& http, const LoadOptions& load,
                         const StopSignal* stop, bool quiet) {
  const Target target = find_target(http);
  const std::int64_t length = load.input_tokens + load.output_tokens;
  BEV_CHECK(target.max_model_len == 0 || length <= target.max_model_len, ErrorKind::kConfig,
            "--input-len: ", load.input_tokens, " and ", load.output_tokens,
            " new tokens are more than the longest context of the server, ", target.max_model_len);
  allow_open_files(std::max(load.width(load.requests), http.warmup));
  std::random_device random;
  const std::string salt = concat("load-", random(), "-", random());
  HttpLoadRun::Setting setting{http, target, salt, stop, true};
  if (http.warmup > 0) {
    LoadOptions warmup = load;
    warmup.requests = http.warmup;
    warmup.output_tokens = std::min(load.output_tokens, kWarmUpTokens);
    warmup.shared_prefix_tokens = 0;
    warmup.rate = 0;
    warmup.concurrency = 0;
    if (!quiet) log_info(concat("warming up with ", http.warmup, " requests"));
    HttpLoadRun run(setting, warmup, kWarmUpPrompt, 0);
    run.run();
    BEV_CHECK(run.first_failure().empty(), ErrorKind::kIo, http.url,
              ": a request to warm up failed: ", run.first_failure());
  }
  if (!quiet) log_info(concat("running ", load.requests, " requests"));
  setting.quiet = quiet;
  return HttpLoadRun(setting, load, 0, 1).run();
}

}  // namespace bev
