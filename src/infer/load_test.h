// Load test of an inference engine: requests with random prompts that arrive at once, at a rate, or
// as others finish, and the times of their tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/trace.h"
#include "infer/engine.h"

namespace bev {

struct LoadOptions {
  std::int64_t requests = 1;
  std::int64_t input_tokens = 1, output_tokens = 1;  // of each request, exactly
  std::int64_t shared_prefix_tokens = 0;             // with which all prompts begin
  double rate = 0;                // requests/s on average, as a Poisson process; 0: all at once
  std::int64_t concurrency = 0;   // requests in flight; 0: all
  SamplingOptions sampling = {};  // its seed is that of prompts and arrivals too

  // All requests arrive at once.
  bool closed() const { return rate == 0 && concurrency == 0; }
  // Requests that run at a time.
  std::int64_t width(std::int64_t max_sequences) const;
};

// Request number `index`: its prompt depends on the seed and its number alone.
Request load_request(const LoadOptions& options, std::int64_t vocabulary, std::int64_t index);
// Seconds after the start at which requests arrive, by the rate; the first at 0.
std::vector<double> arrival_times(const LoadOptions& options);

// Times are seconds since the start.
struct RequestRecord {
  double arrival = 0;
  std::vector<double> token_times;
  std::int64_t cached_tokens = 0;
  bool completed = false;  // with all its tokens
};

struct LoadResult {
  std::vector<RequestRecord> requests;
  // Steps are those of the replica with most, other numbers sums over the replicas.
  EngineStatistics statistics;
};

// Runs the load to its end, with a line of progress on world rank 0 unless `quiet`. Collective;
// complete on world rank 0. Prompts of earlier loads are not in the prefix cache.
LoadResult run_load(InferenceEngine& engine, const LoadOptions& options, bool quiet = false);

// Runs up to `requests` small requests, so that CUDA graphs exist for the steps that the load will
// have. Collective.
void warm_up_load(InferenceEngine& engine, const LoadOptions& options, std::int64_t requests);

// What the device does in steps that compute a token of every sequence.
struct DeviceIdle {
  double share = 0;          // of the time in which nothing runs
  double between_steps = 0;  // the same between steps: at most
};
// From the spans of so many steps, sorted by begin; nullopt if there are none.
std::optional<DeviceIdle> idle_of(const std::vector<DeviceSpan>& spans, std::int64_t steps);
// Traces a few steps of as many sequences as the load has at a time. nullopt if the device has no
// trace. For an engine of a single rank.
std::optional<DeviceIdle> trace_device_idle(InferenceEngine& engine, const LoadOptions& options);

}  // namespace bev
