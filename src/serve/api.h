// The HTTP API of a model: OpenAI's routes with vLLM's additions, Megatron's, metrics, and control.
// It answers 503 until the engine is ready, and again while it drains or is paused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "serve/access.h"
#include "serve/engine_loop.h"
#include "serve/http_server.h"
#include "serve/served_model.h"

namespace bev {

struct ApiOptions {
  HttpServerOptions http;
  AccessOptions access;
  std::int64_t max_waiting = 1024;   // requests that wait for the engine; further ones get 429
  std::int64_t max_sequences = 1;    // that the engine computes at a time
  int worker_threads = 1;            // that read and tokenize requests
  Pooling pooling = Pooling::kLast;  // of embeddings
};

class Api {
 public:
  // Listens from now on. The model must outlive it.
  Api(const ServedModel& model, const ApiOptions& options);
  ~Api();

  std::string url() const;
  // The engine that runs this loop serves the requests.
  EngineLoop& loop();
  void set_ready();
  // No further calls; those under way end within `seconds`, or are cancelled. Ends the loop.
  void drain(double seconds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
