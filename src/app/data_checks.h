// Checks of a run's data: files, splits, labels, preferences, conversations, and sets of
// evaluations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/run_config.h"

namespace bev {

// Vocabulary size of the data; 0 if only its files know.
std::int64_t vocabulary(const DataConfig& data);

// Checks the batches and sets of evaluations, and what is decided by validation losses.
void check_evaluation(const RunConfig& run, std::vector<std::string>& problems);
void check_data(const RunConfig& run, std::vector<std::string>& problems);

}  // namespace bev
