#include "train/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "base/divide.h"
#include "train/svg_chart.h"

namespace bev {

bool is_finite(const PlotPoint& point) {
  return std::abs(point.x) < 1e300 && std::abs(point.y) < 1e300;
}

namespace {
struct Ranges {
  PlotRange x, y;
  void add(std::span<const PlotPoint> points) {
    for (const PlotPoint& point : points) {
      if (!is_finite(point)) continue;
      x.add(point.x);
      y.add(point.y);
    }
  }
};

}  // namespace

std::string tick_label(double value, double step) {
  double size = std::max(std::abs(value), step);
  if (value != 0.0 && (size < 1e-3 || size >= 1e7)) {
    auto digits =
        static_cast<int>(std::floor(std::log10(std::abs(value))) - std::floor(std::log10(step)));
    return fmt::format("{:.{}e}", value, std::clamp(digits, 0, 6));
  }
  int decimals = std::clamp(static_cast<int>(-std::floor(std::log10(step) + 1e-9)), 0, 9);
  return fmt::format("{:.{}f}", value, decimals);
}

std::vector<PlotPoint> thinned(std::span<const PlotPoint> points, std::size_t count) {
  std::size_t run = ceil_div(points.size(), count);
  std::vector<PlotPoint> out;
  for (std::size_t begin = 0; begin < points.size(); begin += run) {
    PlotPoint sum;
    double members = 0.0;
    for (const PlotPoint& point : points.subspan(begin, std::min(run, points.size() - begin))) {
      if (!is_finite(point)) continue;
      sum.x += point.x;
      sum.y += point.y;
      members += 1.0;
    }
    if (members > 0.0) out.push_back({sum.x / members, sum.y / members});
  }
  return out;
}

std::vector<PlotPoint> smoothed(std::span<const PlotPoint> points) {
  std::vector<PlotPoint> finite;
  std::copy_if(points.begin(), points.end(), std::back_inserter(finite), is_finite);
  auto count = static_cast<std::int64_t>(finite.size());
  std::vector<double> sums(finite.size() + 1, 0.0);
  for (std::size_t i = 0; i < finite.size(); ++i) sums[i + 1] = sums[i] + finite[i].y;
  std::vector<PlotPoint> out = finite;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t reach = std::min(i, count / 40);
    auto begin = static_cast<std::size_t>(i - reach);
    auto end = static_cast<std::size_t>(std::min(i + reach + 1, count));
    out[static_cast<std::size_t>(i)].y =
        (sums[end] - sums[begin]) / static_cast<double>(end - begin);
  }
  return out;
}

namespace {
constexpr int kLeft = 76;  // of the y axis

std::vector<SvgChart::Tick> loss_ticks(const PlotRange& range) {
  std::vector<SvgChart::Tick> out;
  AxisTicks ticks = axis_ticks(range.low, range.high, 7);
  for (double value : ticks.values) out.emplace_back(value, tick_label(value, ticks.step));
  return out;
}

void put_points(SvgChart& chart, std::span<const PlotPoint> values, double radius,
                std::string_view style) {
  chart.put(fmt::format("<g {}>", style));
  for (const PlotPoint& point : values) {
    if (!is_finite(point)) continue;
    chart.put(fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{}"/>)", chart.px(point.x),
                          chart.py(point.y), radius));
  }
  chart.put("</g>");
}

void put_legend(SvgChart& chart, const LossCurves& curves) {
  int x = SvgChart::kWidth - SvgChart::kRight;
  auto entry = [&](std::string_view name, std::string_view colour, std::span<const PlotPoint> from,
                   double told = NAN) {
    auto last = std::find_if(from.rbegin(), from.rend(), is_finite);
    if (last == from.rend()) return;
    chart.put(fmt::format(
        R"(<text x="{}" y="32" text-anchor="end" fill="{}" font-weight="600">{} {:.4f}</text>)", x,
        colour, name, std::isnan(told) ? last->y : told));
    x -= 150;
  };
  entry("validation", "#bc4c00", curves.validation);
  entry("train", "#0969da", curves.train, curves.final_loss);
}
}  // namespace

AxisTicks axis_ticks(double low, double high, std::int64_t wanted) {
  AxisTicks ticks;
  double span = high - low;
  if (!(span > 0.0) || !std::isfinite(span)) return {1.0, {low}};
  double rough = span / static_cast<double>(std::max<std::int64_t>(wanted, 1));
  double power = std::pow(10.0, std::floor(std::log10(rough)));
  double lead = rough / power;
  ticks.step = power * (lead <= 1.0 ? 1.0 : lead <= 2.0 ? 2.0 : lead <= 5.0 ? 5.0 : 10.0);
  // Multiples of an integer, so that rounding errors do not accumulate.
  auto first = static_cast<std::int64_t>(std::ceil(low / ticks.step - 1e-9));
  auto last = static_cast<std::int64_t>(std::floor(high / ticks.step + 1e-9));
  for (std::int64_t i = first; i <= last; ++i)
    ticks.values.push_back(static_cast<double>(i) * ticks.step);
  return ticks;
}

std::string loss_svg(const LossCurves& curves) {
  Ranges ranges;
  ranges.add(curves.train);
  ranges.add(curves.validation);
  const PlotRange y = ranges.y.padded(0.06);
  SvgChart chart(kLeft, ranges.x.widened(), y);
  chart.begin(SvgChart::kPlotHeight, curves.title);
  chart.axes(loss_ticks(y), 9, "iteration");
  chart.put(fmt::format(
      R"svg(<text transform="translate(20 {}) rotate(-90)" text-anchor="middle">loss</text>)svg",
      (SvgChart::kTop + SvgChart::kPlotHeight - SvgChart::kBottom) / 2));
  if (ranges.x.empty()) chart.note("no finite points");
  put_points(chart, thinned(curves.train, 1200), 1.8, R"(fill="#54aeff" fill-opacity="0.35")");
  chart.line(thinned(smoothed(curves.train), 1200), R"(stroke="#0969da" stroke-width="2.2")");
  chart.line(curves.validation, R"(stroke="#bc4c00" stroke-width="1.2")");
  put_points(chart, curves.validation, 4.0, R"(fill="#ffffff" stroke="#bc4c00" stroke-width="2")");
  put_legend(chart, curves);
  return chart.finish();
}

namespace {
// A canvas of braille characters, each 2 dots wide and 4 high.
class BrailleCanvas {
 public:
  BrailleCanvas(std::int64_t columns, std::int64_t rows)
      : columns_(columns), rows_(rows), cells_(static_cast<std::size_t>(columns * rows), 0) {}

  // Coordinates are fractions of width and height in [0, 1], y upwards.
  void line(PlotPoint from, PlotPoint to) {
    double dx = (to.x - from.x) * static_cast<double>(columns_ * 2 - 1);
    double dy = (to.y - from.y) * static_cast<double>(rows_ * 4 - 1);
    auto steps = std::max<std::int64_t>(std::llround(std::max(std::abs(dx), std::abs(dy))), 1);
    for (std::int64_t i = 0; i <= steps; ++i) {
      double part = static_cast<double>(i) / static_cast<double>(steps);
      dot(from.x + (to.x - from.x) * part, from.y + (to.y - from.y) * part);
    }
  }

  std::string row(std::int64_t row) const {
    std::string text;
    for (std::int64_t column = 0; column < columns_; ++column) {
      unsigned bits = cells_[static_cast<std::size_t>(row * columns_ + column)];
      if (bits == 0) {
        text += ' ';
        continue;
      }
      unsigned code = 0x2800 + bits;  // three bytes of UTF-8
      text += static_cast<char>(0xE0 | code >> 12);
      text += static_cast<char>(0x80 | (code >> 6 & 0x3F));
      text += static_cast<char>(0x80 | (code & 0x3F));
    }
    return text;
  }

 private:
  void dot(double x, double y) {
    static constexpr std::uint8_t kBits[4][2] = {
        {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    std::int64_t column = std::llround(x * static_cast<double>(columns_ * 2 - 1));
    std::int64_t row = std::llround((1.0 - y) * static_cast<double>(rows_ * 4 - 1));
    cells_[static_cast<std::size_t>(row / 4 * columns_ + column / 2)] |= kBits[row % 4][column % 2];
  }

  std::int64_t columns_, rows_;
  std::vector<std::uint8_t> cells_;
};

void draw_series(BrailleCanvas& canvas, std::span<const PlotPoint> points, const Ranges& ranges) {
  PlotPoint before;
  bool pen_down = false;
  for (const PlotPoint& point : points) {
    if (is_finite(point)) {
      PlotPoint at{ranges.x.share(point.x), ranges.y.share(point.y)};
      canvas.line(pen_down ? before : at, at);
      before = at;
    }
    pen_down = is_finite(point);
  }
}

// Text of `columns` columns with `left` at the start and `right` at the end.
std::string spread(const std::string& left, const std::string& right, std::int64_t columns) {
  auto used = static_cast<std::int64_t>(left.size() + right.size());
  return left +
         std::string(static_cast<std::size_t>(std::max<std::int64_t>(columns - used, 1)), ' ') +
         right;
}
}  // namespace

std::string terminal_plot(std::span<const PlotPoint> points, const TerminalPlot& layout) {
  constexpr std::int64_t kLabel = 10;  // columns of the labels on the left
  std::int64_t columns = std::max<std::int64_t>(layout.width - kLabel - 2, 8);
  std::int64_t rows = std::max<std::int64_t>(layout.height, 3);
  std::string text = layout.title.empty() ? "" : layout.title + '\n';
  Ranges found;
  found.add(points);
  if (found.x.empty()) return text + "(no finite points)\n";
  Ranges ranges{
      found.x.low == found.x.high ? PlotRange{found.x.low - 1.0, found.x.low + 1.0} : found.x,
      found.y.padded(0.0)};
  BrailleCanvas canvas(columns, rows);
  draw_series(canvas, points, ranges);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::string label;
    if (row % 3 == 0 || row == rows - 1) {
      double share = 1.0 - static_cast<double>(row) / static_cast<double>(rows - 1);
      label = fmt::format("{:.4g}", ranges.y.low + share * (ranges.y.high - ranges.y.low));
    }
    if (row == rows - 2 && row % 3 == 0) label.clear();
    text += fmt::format("{:>{}} {}{}\n", label, kLabel, label.empty() ? "│" : "┤", canvas.row(row));
  }
  std::string rule;
  for (std::int64_t i = 0; i < columns; ++i) rule += "─";
  text += fmt::format("{:>{}} └{}\n", "", kLabel, rule);
  text +=
      std::string(kLabel + 2, ' ') +
      spread(fmt::format("{:.6g}", ranges.x.low), fmt::format("{:.6g}", ranges.x.high), columns) +
      '\n';
  return text;
}

}  // namespace bev
