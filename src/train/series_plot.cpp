#include "train/series_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "base/markup.h"
#include "train/svg_chart.h"

namespace bev {

namespace {

constexpr auto kColours =
    std::to_array<std::string_view>({"#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e",
                                     "#0e7490", "#9a6700", "#bf3989", "#57606a", "#4d2d00"});
constexpr std::size_t kMostPoints = 800;  // of a line

class SeriesSvg {
 public:
  explicit SeriesSvg(const SeriesPlot& plot) : plot_(plot) {
    for (const PlotSeries& series : plot.series) {
      points_.push_back(scaled(series.points));
      lines_.push_back(scaled(smoothed(series.points)));
      for (const PlotPoint& point : points_.back()) {
        if (!is_finite(point)) continue;
        x_.add(point.x);
        y_.add(point.y);
        empty_ = false;
      }
    }
    y_ = y_.padded(0.06);
  }

  std::string draw() {
    SvgChart chart(kLeft, x_.widened(), y_);
    chart.begin(kHeight + kLegendRow * static_cast<int>(plot_.series.size()) + 12, plot_.title);
    chart.axes(y_ticks(), 8, plot_.x_label);
    if (empty_) chart.note("no points to draw");
    for (std::size_t i = 0; i < plot_.series.size(); ++i) {
      chart.line(thinned_gaps(points_[i]), style(i, 1.0, 0.3));
      chart.line(thinned_gaps(lines_[i]), style(i, 2.0, 1.0));
      lone_point(chart, i);
      legend(chart, i);
    }
    return chart.finish();
  }

 private:
  static constexpr int kHeight = SvgChart::kPlotHeight, kLeft = 84, kLegendRow = 20;

  static std::string_view colour(std::size_t i) { return kColours[i % kColours.size()]; }
  // Colours repeat with dashes.
  static std::string dashes(std::size_t i) {
    std::size_t round = i / kColours.size();
    return round == 0 ? "" : fmt::format(R"( stroke-dasharray="{} 3")", 3 + 4 * round);
  }
  static std::string style(std::size_t i, double width, double opacity) {
    return fmt::format(R"(stroke="{}" stroke-width="{}" stroke-opacity="{}"{})", colour(i), width,
                       opacity, dashes(i));
  }

  // The points in the scale of the axis; those that it does not have become gaps.
  std::vector<PlotPoint> scaled(std::vector<PlotPoint> points) const {
    if (!plot_.log_y) return points;
    for (PlotPoint& point : points) {
      bool positive = point.y > 0 && is_finite(point);
      point.y = positive ? std::log10(point.y) : std::numeric_limits<double>::quiet_NaN();
    }
    return points;
  }
  // Short lines keep their gaps.
  static std::vector<PlotPoint> thinned_gaps(const std::vector<PlotPoint>& points) {
    return points.size() <= kMostPoints ? points : thinned(points, kMostPoints);
  }

  // Pairs of a value in the scale of the axis and its label.
  std::vector<SvgChart::Tick> y_ticks() const {
    std::vector<SvgChart::Tick> out;
    if (plot_.log_y) {
      bool wide = y_.high - y_.low > 4;
      auto first = static_cast<int>(std::floor(y_.low)), last = static_cast<int>(y_.high) + 1;
      int step = std::max(1, (last - first) / 10);
      for (int power = first; power <= last; power += step) {
        for (int lead : {1, 2, 5}) {
          double value = power + std::log10(lead);
          if (value < y_.low || value > y_.high || (wide && lead > 1)) continue;
          out.emplace_back(value, fmt::format("{:.4g}", lead * std::pow(10.0, power)));
        }
      }
      if (out.size() > 1) return out;
      out.clear();
    }
    double low = plot_.log_y ? std::pow(10.0, y_.low) : y_.low;
    double high = plot_.log_y ? std::pow(10.0, y_.high) : y_.high;
    AxisTicks ticks = axis_ticks(low, high, 7);
    for (double value : ticks.values) {
      if (plot_.log_y && value <= 0) continue;
      out.emplace_back(plot_.log_y ? std::log10(value) : value, tick_label(value, ticks.step));
    }
    return out;
  }

  // A line of one point would not be seen.
  void lone_point(SvgChart& chart, std::size_t i) const {
    if (std::ranges::count_if(points_[i], is_finite) != 1) return;
    const PlotPoint& point = *std::ranges::find_if(points_[i], is_finite);
    chart.put(fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="{}"/>)", chart.px(point.x),
                          chart.py(point.y), colour(i)));
  }

  void legend(SvgChart& chart, std::size_t i) const {
    constexpr std::size_t kMostName = 100;
    const PlotSeries& series = plot_.series[i];
    int y = kHeight + kLegendRow * static_cast<int>(i);
    auto last = std::find_if(series.points.rbegin(), series.points.rend(), is_finite);
    std::string value = last == series.points.rend() ? "no points" : fmt::format("{:.6g}", last->y);
    std::string name = series.name;
    if (name.size() > kMostName) {
      std::size_t from = name.size() - kMostName;
      while (from < name.size() && (name[from] & 0xC0) == 0x80) ++from;  // inside of a character
      name = "..." + name.substr(from);
    }
    chart.put(fmt::format(R"(<path d="M{} {}H{}" stroke="{}" stroke-width="3"{}/>)", kLeft, y,
                          kLeft + 28, colour(i), dashes(i)));
    chart.put(fmt::format(R"(<text x="{}" y="{:.1f}" fill="#1f2328">{}: {}</text>)", kLeft + 38,
                          y + 4.5, escape_markup(name), value));
  }

  const SeriesPlot& plot_;
  std::vector<std::vector<PlotPoint>> points_, lines_;  // in the scale of the axis
  PlotRange x_, y_;
  bool empty_ = true;
};

}  // namespace

std::string series_svg(const SeriesPlot& plot) { return SeriesSvg(plot).draw(); }

}  // namespace bev
