// Opens examples with labels, selected by the flags, as samples of an encoder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/gpt/split.h"
#include "train/config.h"

namespace bev {

// The labels of a run by number: --label-names, else those of the training data.
std::vector<std::string> run_label_names(const DataConfig& config);

// Examples for training are shuffled anew in every epoch, those for validation stay in order. Logs
// a report of them.
std::shared_ptr<const Dataset> open_label_data(const DataConfig& config, DataSplit split,
                                               std::int64_t vocab_size, std::uint64_t seed);

}  // namespace bev
