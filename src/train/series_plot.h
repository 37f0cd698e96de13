// Several runs in one drawing: a metric of each as a line, as a self-contained SVG.
#pragma once

#include <string>
#include <vector>

#include "train/plot.h"

namespace bev {

struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;  // x ascending; points that are not finite are gaps
};

struct SeriesPlot {
  std::string title, x_label;
  bool log_y = false;  // values of 0 and below are left out
  std::vector<PlotSeries> series;
};

// Each series has its colour: a faint line of its points, a smoothed one, and a row of the legend
// with its name and last value.
std::string series_svg(const SeriesPlot& plot);

}  // namespace bev
