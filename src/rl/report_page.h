// The course of a run as one HTML file: its metrics drawn over the iterations, and samples.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "train/metrics_file.h"

namespace bev {

struct PageSample {
  std::int64_t step = 0;
  std::string prompt, completion;
  double reward = 0;  // NaN: none
};

// Needs no other file. Of the samples about twelve are shown, evenly over the run.
std::string report_page(const MetricsFile& metrics, std::span<const PageSample> samples);

}  // namespace bev
