// Plots: the loss of a run as an SVG file, any series as text for a terminal. Non-finite points are
// left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace bev {

struct PlotPoint {
  double x = 0.0;
  double y = 0.0;
};

struct LossCurves {
  std::string title = "Loss";
  std::vector<PlotPoint> train = {};       // x is the iteration, ascending
  std::vector<PlotPoint> validation = {};  // may be empty
  // The loss of the run as its log and summary tell it; NaN: the last point.
  double final_loss = std::numeric_limits<double>::quiet_NaN();
};

// A self-contained SVG: training points, their smoothed line, validation points.
std::string loss_svg(const LossCurves& curves);

struct TerminalPlot {
  std::string title = {};
  std::int64_t width = 76;   // columns, labels included
  std::int64_t height = 14;  // rows of the curve; title and axis come on top
};

// The series as a line of braille dots with labelled axes; every row ends with a line end.
std::string terminal_plot(std::span<const PlotPoint> points, const TerminalPlot& layout);

// Values at which an axis over [low, high] is labelled: multiples of 1, 2 or 5 times a power of ten
// inside the range, about `wanted` of them.
struct AxisTicks {
  double step = 1.0;
  std::vector<double> values;
};
AxisTicks axis_ticks(double low, double high, std::int64_t wanted);
// Label of such a value.
std::string tick_label(double value, double step);

// Also false for values so large that their difference would overflow.
bool is_finite(const PlotPoint& point);
// Mean of the finite points of each of at most `count` equal runs of points.
std::vector<PlotPoint> thinned(std::span<const PlotPoint> points, std::size_t count);
// The finite points with a centred moving average. At the start, where losses fall fast, the window
// shrinks to avoid bias; at the end it is truncated, so that the last value is not a single noisy
// point.
std::vector<PlotPoint> smoothed(std::span<const PlotPoint> points);

}  // namespace bev
