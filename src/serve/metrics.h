// What the server counts, in the text format of Prometheus, under vLLM's core names with the prefix
// "bevatron:". From any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "infer/request.h"
#include "serve/engine_loop.h"

namespace bev {

// When what happened to a request of a call, on monotonic_seconds(); 0: not yet.
struct CallTimes {
  double arrival = 0, started = 0, first_token = 0, last_token = 0;
};

class Metrics {
 public:
  explicit Metrics(std::string model_name);
  ~Metrics();

  void accepted();  // a request that the engine will get
  void started(CallTimes& times);
  // The engine's request is over. `counted`: accepted() was called for it.
  void ended(bool had_started);
  void token(CallTimes& times);
  void finished(const CallTimes& times, FinishReason reason, std::int64_t prompt_tokens,
                std::int64_t cached_tokens, std::int64_t output_tokens);
  void params(std::int64_t n, std::int64_t max_tokens);
  void http(std::string_view method, std::string_view handler, int status, double seconds);
  void dropped();  // a connection that the client closed, or that did not read

  // Requests that the engine has or will get and that have not started.
  std::int64_t waiting() const;
  std::int64_t running() const;

  std::string text(const EngineSnapshot& engine) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
