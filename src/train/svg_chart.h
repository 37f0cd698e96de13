// What the SVG plots share: ranges of axes, the frame with labelled ticks, and lines in it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/plot.h"

namespace bev {

struct PlotRange {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  bool empty() const { return low > high; }
  void add(double value);
  double share(double value) const { return (value - low) / (high - low); }
  // The range with a margin, and never of width 0.
  PlotRange padded(double part) const;
  // The same for the x axis, without a margin; a single value is in the middle.
  PlotRange widened() const;
};

// A text of SVG elements on a white ground of `height`, with the coordinate system in its upper 480
// pixels.
class SvgChart {
 public:
  static constexpr int kWidth = 900, kPlotHeight = 480, kRight = 28, kTop = 56, kBottom = 58;

  // `left` is where the y axis stands.
  SvgChart(int left, const PlotRange& x, const PlotRange& y) : left_(left), x_(x), y_(y) {}

  // Adds an element.
  void put(std::string_view element) { text_.append(element) += '\n'; }
  double px(double x) const { return left_ + x_.share(x) * (kWidth - left_ - kRight); }
  double py(double y) const {
    return kPlotHeight - kBottom - y_.share(y) * (kPlotHeight - kTop - kBottom);
  }

  void begin(int height, std::string_view title);
  // Rows are pairs of a y value and its label; the x axis has about `columns` labels.
  using Tick = std::pair<double, std::string>;
  void axes(std::span<const Tick> rows, std::int64_t columns, std::string_view x_label);
  // A text in the middle of the coordinate system.
  void note(std::string_view text);
  // The line through the points with gaps at those that are not finite; `style` has attributes.
  void line(std::span<const PlotPoint> points, std::string_view style);
  // Ends the drawing and returns it.
  std::string finish() { return std::move(text_) + "</svg>\n"; }

 private:
  int left_;
  PlotRange x_, y_;
  std::string text_;
};

}  // namespace bev
