// Reads the files of --metrics-out: JSON lines, one for every iteration, and rows of evaluations
// between them ({"iteration", "split", "name", "loss", "perplexity"}).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "train/series_plot.h"

namespace bev {

enum class PlotAxis : std::uint8_t { kIteration, kTokens, kTime };

class MetricsFile {
 public:
  // Rows of a resumed run replace those of the same iterations. An incomplete last line, as a run
  // that writes now or was killed may leave it, is ignored. Throws Error(kInput) naming file and
  // line otherwise.
  explicit MetricsFile(const std::string& path);
  ~MetricsFile();
  MetricsFile(MetricsFile&& other) noexcept;

  // Names for series(): keys of iterations with numbers; "validation" and "test", their losses, and
  // "validation_perplexity" and so on, where there were evaluations.
  std::vector<std::string> metrics() const;
  // The metric over iterations, consumed tokens, or seconds spent in iterations; one series, or for
  // evaluations of several named sets one for each name. Null is NaN. Throws Error(kInput) listing
  // what there is if the metric or the axis is missing.
  std::vector<PlotSeries> series(std::string_view metric, PlotAxis axis) const;

 private:
  struct Rows;
  std::string path_;
  std::unique_ptr<Rows> rows_;
};

}  // namespace bev
