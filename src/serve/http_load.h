// Load test of a server that speaks OpenAI's completions over HTTP: the requests of load_test.h,
// posted to /v1/completions, and the times at which the events with their tokens arrive.
#pragma once

#include <cstdint>
#include <string>

#include "infer/load_test.h"

namespace bev {

class StopSignal;

struct HttpLoadOptions {
  std::string url = {};         // http://HOST:PORT, with /v1 or without
  std::string api_key = {};     // "": none is sent
  std::string model = {};       // "": the first that the server lists
  std::int64_t vocab_size = 0;  // tokens of prompts are below it; 0: what the server says
  bool stream = true;           // else all tokens of a request have the time of its answer
  bool verify_tls = true;
  double timeout_s = 600;   // a request that hears nothing for so long has failed
  std::int64_t warmup = 1;  // requests before the load
};

// Runs the load to its end, or until the signal. Requests that fail are not completed, and the
// reasons of the first are logged, unless `quiet`; after the signal, requests that have not ended
// are left out. Throws Error(kIo) if the server cannot be asked or refuses to warm up,
// Error(kConfig) if the load does not fit its model. Prompts of other loads are not in the
// server's prefix cache, if it knows "cache_salt". Statistics of the engine are 0.
LoadResult run_http_load(const HttpLoadOptions& http, const LoadOptions& load,
                         const StopSignal* stop = nullptr, bool quiet = false);

}  // namespace bev
