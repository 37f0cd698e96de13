// Metrics of predictions as one line of JSON: {"examples", "metrics", "labels", "confusion"}.
#pragma once

#include <string>
#include <vector>

#include "app/predictions.h"

namespace bev {

// metrics: names; empty: all of the task. Throws Error(kConfig) naming one that is not known.
std::string evaluate_predictions(const ExampleFormat& format,
                                 const std::vector<TextExample>& examples,
                                 const std::vector<Prediction>& predictions,
                                 const std::vector<std::string>& metrics);

// The same of two files of JSON lines, matched by "id" if all lines have one, else by order. Throws
// Error(kInput) naming file and line.
std::string evaluate_files(const std::string& predictions, const std::string& references,
                           const std::vector<std::string>& metrics);

}  // namespace bev
