// Runs given requests to their end: what generate, tests and benchmarks do.
#pragma once

#include <span>
#include <vector>

#include "infer/engine.h"

namespace bev {

// The options of an engine that serves just these requests: no more sequences, tokens per step and
// cache than they can use. `options` has what else is wanted.
InferenceOptions options_for(std::span<const Request> requests, InferenceOptions options = {});

// Results in the order of the requests; complete on world rank 0, and on the ranks of a single
// replica. The sink, which may be null, hears of tokens as they come, by the index of the request.
std::vector<RequestResult> generate(InferenceEngine& engine, std::span<const Request> requests,
                                    RequestSink* sink = nullptr);

}  // namespace bev
