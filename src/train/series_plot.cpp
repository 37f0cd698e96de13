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

namespace bev {

namespace {

constexpr auto kColours =
    std::to_array<std::string_view>({"#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e",
                                     "#0e7490", "#9a6700", "#bf3989", "#57606a", "#4d2d00"});
constexpr std::size_t kMostPoints = 800;  // of a line

// Low and high end of an axis, in its own scale.
struct Axis {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Never of width 0.
  void pad(double part) {
    if (low > high) low = 0, high = 1;
    double room = (high - low) * part;
    if (high - low <= std::abs(high) * 1e-12) room = high == 0 ? 1 : std::abs(high) * 0.1;
    low -= room;
    high += room;
  }
  double share(double value) const { return (value - low) / (high - low); }
};

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
    bool one_x = !empty_ && x_.low == x_.high;
    if (one_x) x_ = {x_.low - 1, x_.low + 1};
    x_.pad(0);
    y_.pad(0.06);
  }

  std::string draw() {
    int height = kPlotHeight + kLegendRow * static_cast<int>(plot_.series.size()) + 12;
    put(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" )"
        R"(font-family="system-ui, sans-serif" font-size="13" fill="#57606a">)",
        kWidth, height);
    put(R"(<rect width="{}" height="{}" rx="8" fill="#ffffff"/>)", kWidth, height);
    put(R"(<text x="{}" y="32" font-size="18" font-weight="600" fill="#1f2328">{}</text>)", kLeft,
        escape_markup(plot_.title));
    axes();
    if (empty_) {
      put(R"(<text x="{}" y="{}" text-anchor="middle">no points to draw</text>)",
          (kLeft + kWidth - kRight) / 2, (kTop + kPlotHeight - kBottom) / 2);
    }
    for (std::size_t i = 0; i < plot_.series.size(); ++i) {
      line(thinned_gaps(points_[i]), i, 1.0, 0.3);
      line(thinned_gaps(lines_[i]), i, 2.0, 1.0);
      lone_point(i);
      legend(i);
    }
    return text_ + "</svg>\n";
  }

 private:
  static constexpr int kWidth = 900, kPlotHeight = 480, kLeft = 84, kRight = 28, kTop = 56,
                       kBottom = 58, kLegendRow = 20;

  template <class... Values>
  void put(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Values>(values)...);
    text_ += '\n';
  }
  double px(double x) const { return kLeft + x_.share(x) * (kWidth - kLeft - kRight); }
  double py(double y) const {
    return kPlotHeight - kBottom - y_.share(y) * (kPlotHeight - kTop - kBottom);
  }
  static std::string_view colour(std::size_t i) { return kColours[i % kColours.size()]; }
  // Colours repeat with dashes.
  static std::string dashes(std::size_t i) {
    std::size_t round = i / kColours.size();
    return round == 0 ? "" : fmt::format(R"( stroke-dasharray="{} 3")", 3 + 4 * round);
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
  std::vector<std::pair<double, std::string>> y_ticks() const {
    std::vector<std::pair<double, std::string>> out;
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

  void axes() {
    for (const auto& [value, label] : y_ticks()) {
      put(R"(<line x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}" stroke="#eaeef2"/>)", kLeft,
          kWidth - kRight, py(value));
      put(R"(<text x="{}" y="{:.1f}" text-anchor="end">{}</text>)", kLeft - 10, py(value) + 4.5,
          label);
    }
    AxisTicks columns = axis_ticks(x_.low, x_.high, 8);
    for (double value : columns.values) {
      put(R"(<line x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}" stroke="#8c959f"/>)", px(value),
          kPlotHeight - kBottom, kPlotHeight - kBottom + 5);
      put(R"(<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>)", px(value),
          kPlotHeight - kBottom + 21, tick_label(value, columns.step));
    }
    put(R"(<path d="M{0} {1}V{2}H{3}" fill="none" stroke="#8c959f"/>)", kLeft, kTop,
        kPlotHeight - kBottom, kWidth - kRight);
    put(R"(<text x="{}" y="{}" text-anchor="middle">{}</text>)", (kLeft + kWidth - kRight) / 2,
        kPlotHeight - 14, escape_markup(plot_.x_label));
  }

  void line(const std::vector<PlotPoint>& points, std::size_t i, double width, double opacity) {
    std::string path;
    bool pen_down = false;
    for (const PlotPoint& point : points) {
      if (is_finite(point)) {
        path += fmt::format("{}{:.1f} {:.1f}", pen_down ? 'L' : 'M', px(point.x), py(point.y));
      }
      pen_down = is_finite(point);
    }
    if (path.empty()) return;
    put(R"(<path d="{}" fill="none" stroke="{}" stroke-width="{}" stroke-opacity="{}"{} )"
        R"(stroke-linejoin="round"/>)",
        path, colour(i), width, opacity, dashes(i));
  }

  // A line of one point would not be seen.
  void lone_point(std::size_t i) {
    if (std::ranges::count_if(points_[i], is_finite) != 1) return;
    const PlotPoint& point = *std::ranges::find_if(points_[i], is_finite);
    put(R"(<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="{}"/>)", px(point.x), py(point.y),
        colour(i));
  }

  void legend(std::size_t i) {
    constexpr std::size_t kMostName = 100;
    const PlotSeries& series = plot_.series[i];
    int y = kPlotHeight + kLegendRow * static_cast<int>(i);
    auto last = std::find_if(series.points.rbegin(), series.points.rend(), is_finite);
    std::string value = last == series.points.rend() ? "no points" : fmt::format("{:.6g}", last->y);
    std::string name = series.name;
    if (name.size() > kMostName) {
      std::size_t from = name.size() - kMostName;
      while (from < name.size() && (name[from] & 0xC0) == 0x80) ++from;  // inside of a character
      name = "..." + name.substr(from);
    }
    put(R"(<path d="M{} {}H{}" stroke="{}" stroke-width="3"{}/>)", kLeft, y, kLeft + 28, colour(i),
        dashes(i));
    put(R"(<text x="{}" y="{:.1f}" fill="#1f2328">{}: {}</text>)", kLeft + 38, y + 4.5,
        escape_markup(name), value);
  }

  const SeriesPlot& plot_;
  std::vector<std::vector<PlotPoint>> points_, lines_;  // in the scale of the axis
  Axis x_, y_;
  bool empty_ = true;
  std::string text_;
};

}  // namespace

std::string series_svg(const SeriesPlot& plot) { return SeriesSvg(plot).draw(); }

}  // namespace bev
