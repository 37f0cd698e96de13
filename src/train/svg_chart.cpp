#include "train/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/markup.h"

namespace bev {

void PlotRange::add(double value) {
  low = std::min(low, value);
  high = std::max(high, value);
}

PlotRange PlotRange::padded(double part) const {
  if (empty()) return {0.0, 1.0};
  double room = (high - low) * part;
  if (high - low <= std::abs(high) * 1e-12) room = high == 0.0 ? 1.0 : std::abs(high) * 0.1;
  return {low - room, high + room};
}

PlotRange PlotRange::widened() const {
  return low == high ? PlotRange{low - 1.0, low + 1.0} : padded(0.0);
}

void SvgChart::begin(int height, std::string_view title) {
  put(fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" )"
      R"(font-family="system-ui, sans-serif" font-size="13" fill="#57606a">)",
      kWidth, height));
  put(fmt::format(R"(<rect width="{}" height="{}" rx="8" fill="#ffffff"/>)", kWidth, height));
  put(fmt::format(
      R"(<text x="{}" y="32" font-size="18" font-weight="600" fill="#1f2328">{}</text>)", left_,
      escape_markup(title)));
}

void SvgChart::axes(std::span<const Tick> rows, std::int64_t columns, std::string_view x_label) {
  for (const auto& [value, label] : rows) {
    put(fmt::format(R"(<line x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}" stroke="#eaeef2"/>)",
                    left_, kWidth - kRight, py(value)));
    put(fmt::format(R"(<text x="{}" y="{:.1f}" text-anchor="end">{}</text>)", left_ - 10,
                    py(value) + 4.5, label));
  }
  AxisTicks ticks = axis_ticks(x_.low, x_.high, columns);
  for (double value : ticks.values) {
    put(fmt::format(R"(<line x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}" stroke="#8c959f"/>)",
                    px(value), kPlotHeight - kBottom, kPlotHeight - kBottom + 5));
    put(fmt::format(R"(<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>)", px(value),
                    kPlotHeight - kBottom + 21, tick_label(value, ticks.step)));
  }
  put(fmt::format(R"(<path d="M{0} {1}V{2}H{3}" fill="none" stroke="#8c959f"/>)", left_, kTop,
                  kPlotHeight - kBottom, kWidth - kRight));
  put(fmt::format(R"(<text x="{}" y="{}" text-anchor="middle">{}</text>)",
                  (left_ + kWidth - kRight) / 2, kPlotHeight - 14, escape_markup(x_label)));
}

void SvgChart::note(std::string_view text) {
  put(fmt::format(R"(<text x="{}" y="{}" text-anchor="middle">{}</text>)",
                  (left_ + kWidth - kRight) / 2, (kTop + kPlotHeight - kBottom) / 2, text));
}

void SvgChart::line(std::span<const PlotPoint> points, std::string_view style) {
  std::string path;
  bool pen_down = false;
  for (const PlotPoint& point : points) {
    if (is_finite(point)) {
      path += fmt::format("{}{:.1f} {:.1f}", pen_down ? 'L' : 'M', px(point.x), py(point.y));
    }
    pen_down = is_finite(point);
  }
  if (path.empty()) return;
  put(fmt::format(R"(<path d="{}" fill="none" {} stroke-linejoin="round"/>)", path, style));
}

}  // namespace bev
