#include "infer/generate.h"

#include <algorithm>
#include <utility>

#include "base/divide.h"

namespace bev {

InferenceOptions options_for(std::span<const Request> requests, InferenceOptions options) {
  std::int64_t sequences = 0, prompt_tokens = 0, cache_tokens = 0, largest = 0;
  options.token_counts = false;
  for (const Request& request : requests) {
    std::int64_t prompt = std::ssize(request.prompt);
    sequences += request.width();
    prompt_tokens += prompt;
    // Sequences that share blocks copy one before they write to it.
    std::int64_t copied = request.width() > 1 ? options.block_tokens : 0;
    std::int64_t each = round_up(prompt + request.max_new_tokens, options.block_tokens) + copied;
    cache_tokens += request.width() * each;
    largest = std::max(largest, each);
    options.token_counts = options.token_counts || request.sampling.penalises();
  }
  auto least = [](std::int64_t limit, std::int64_t wanted) {
    return std::min(limit, std::max<std::int64_t>(wanted, 1));
  };
  options.max_sequences = least(options.max_sequences, sequences);
  options.max_step_tokens = least(options.max_step_tokens, std::max(prompt_tokens, sequences));
  options.wanted_tokens = least(options.max_sequences * largest, cache_tokens);
  return options;
}

namespace {

class Collector : public RequestSink {
 public:
  Collector(RequestId first, std::size_t count, RequestSink* next)
      : first_(first), next_(next), results_(count) {}

  void on_started(RequestId id) override {
    if (next_ != nullptr) next_->on_started(id - first_);
  }
  void on_token(const TokenEvent& event) override {
    TokenEvent seen = event;
    seen.request -= first_;
    if (next_ != nullptr) next_->on_token(seen);
  }
  void on_finished(RequestResult result) override {
    result.id -= first_;
    if (next_ != nullptr) next_->on_finished(result);
    auto index = static_cast<std::size_t>(result.id);
    results_[index] = std::move(result);
  }
  std::vector<RequestResult> take() { return std::move(results_); }

 private:
  RequestId first_;
  RequestSink* next_;
  std::vector<RequestResult> results_;
};

}  // namespace

std::vector<RequestResult> generate(InferenceEngine& engine, std::span<const Request> requests,
                                    RequestSink* sink) {
  RequestId first = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    RequestId id = engine.submit(requests[i]);
    if (i == 0) first = id;
  }
  Collector collector(first, requests.size(), sink);
  engine.run(collector);
  return collector.take();
}

}  // namespace bev
