// What a run is, said before it starts: device, precision, model, data, layout, memory, results.
#pragma once

#include <string>
#include <vector>

#include "app/memory_fit.h"
#include "app/run_config.h"
#include "comm/launch.h"
#include "train/loader.h"

namespace bev {

// The resolved architecture in one line: "llama, 2 layers, hidden size 32, 4 heads of 8, ...".
std::string architecture_text(const ModelConfig& model);

// Iterations and tokens of the run, and by how much they exceed the training data: "100 iterations
// of 2 x 32 tokens: 6.4K tokens". `training_tokens` is 0 if unknown.
std::string length_text(const RunConfig& run, double training_tokens);

// Up to ten lines of what is going to run. `runtime` has the threads that are used.
std::vector<std::string> run_summary(const RunConfig& run, const RuntimeConfig& runtime,
                                     const RunData& data, const Launch& launch,
                                     const MemoryFit& memory);

// What a user may not expect of these settings, each with cause and cure.
std::vector<std::string> start_warnings(const RunConfig& run);

}  // namespace bev
