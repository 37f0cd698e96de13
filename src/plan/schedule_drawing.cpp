#include "plan/schedule_drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.h"

namespace bev {

namespace {

double shortest(const ScheduleReport& report) {
  double unit = report.span;
  for (const auto& row : report.timeline) {
    for (const TimedAction& timed : row) {
      if (timed.end > timed.begin) unit = std::min(unit, timed.end - timed.begin);
    }
  }
  return unit > 0 ? unit : 1;
}

char letter_of(ActionKind kind) {
  if (kind == ActionKind::kForward) return 'F';
  return kind == ActionKind::kBackwardWeight ? 'W' : 'B';
}

std::string label_of(const PipelineShape& shape, const Action& action) {
  std::string label = concat(std::string(1, letter_of(action.kind)), action.micro_batch);
  if (shape.chunks > 1) label += static_cast<char>('a' + action.chunk % 26);
  return label;
}

std::string heading(const PipelineShape& shape, std::int64_t micro_batches) {
  return concat(schedule_name(shape), ": ", shape.ranks, shape.ranks == 1 ? " rank" : " ranks",
                shape.chunks > 1 ? concat(" x ", shape.chunks, " stages") : "", ", ", micro_batches,
                micro_batches == 1 ? " micro-batch" : " micro-batches");
}

std::string timing(const ScheduleReport& report) {
  return fmt::format("{:.1f} % bubble in {:g} units of time", 100 * report.bubble, report.span);
}

}  // namespace

std::string schedule_name(const PipelineShape& shape) {
  return concat(shape.interleaved() ? "interleaved " : "", traits_of(shape.schedule).name);
}

std::string schedule_text(const PipelineShape& shape, const ScheduleReport& report,
                          std::int64_t micro_batches) {
  double unit = shortest(report);
  auto columns = static_cast<std::size_t>(std::llround(report.span / unit));
  std::size_t width = label_of(shape, {ActionKind::kForward, micro_batches - 1}).size() + 1;
  std::string out = heading(shape, micro_batches) + "\n";
  for (std::size_t rank = 0; rank < report.timeline.size(); ++rank) {
    std::vector<std::string> cells(columns, ".");
    for (const TimedAction& timed : report.timeline[rank]) {
      auto begin = static_cast<std::size_t>(std::llround(timed.begin / unit));
      auto end = static_cast<std::size_t>(std::llround(timed.end / unit));
      std::fill(cells.begin() + static_cast<std::ptrdiff_t>(begin),
                cells.begin() + static_cast<std::ptrdiff_t>(end), std::string(width - 1, '-'));
      if (begin < end) cells[begin] = label_of(shape, timed.action);
    }
    std::string line = fmt::format("rank {:<3}", rank);
    for (const std::string& cell : cells) line += fmt::format("{:<{}}", cell, width);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  out += timing(report) + "\n";
  std::vector<std::string> peaks;
  for (std::int64_t peak : report.peak_in_flight) peaks.push_back(concat(peak));
  return out + concat("activations held at most, by rank: ", join(peaks, " "),
                      shape.chunks > 1 ? " (micro-batches x stages)\n" : " (micro-batches)\n");
}

namespace {

// Forwards are blue, backwards orange, wgrad green; later stages of a rank are lighter.
class ScheduleSvg {
 public:
  ScheduleSvg(const PipelineShape& shape, const ScheduleReport& report, std::int64_t micro_batches)
      : shape_(shape), report_(report), micro_batches_(micro_batches) {
    unit_ = std::clamp(kWidest / std::max(report.span / shortest(report), 1.0), 4.0, 26.0) /
            shortest(report);
  }

  std::string draw() {
    double chart = std::max(report_.span * unit_, kLeast);
    double height = kTop + kRow * static_cast<double>(report_.timeline.size()) + 78;
    put(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" )"
        R"(width="{0:.0f}" height="{1:.0f}" font-family="system-ui, sans-serif" font-size="12" )"
        R"(fill="#1f2328">)",
        kLeft + chart + kRight, height);
    put(R"(<rect width="100%" height="100%" fill="#ffffff"/>)");
    put(R"(<text x="{}" y="26" font-size="16" font-weight="600">{}</text>)", kLeft,
        heading(shape_, micro_batches_));
    put(R"(<text x="{}" y="44" fill="#59636e">{}</text>)", kLeft, timing(report_));
    scale();
    for (std::size_t rank = 0; rank < report_.timeline.size(); ++rank) row(rank);
    legend(height - 18);
    return text_ + "</svg>\n";
  }

 private:
  static constexpr double kLeft = 70, kRight = 90, kTop = 62, kRow = 30, kLeast = 460;
  // Width limit of the chart, down to the minimum width of a unit.
  static constexpr double kWidest = 3000;

  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }

  double lightness(std::int64_t chunk) const {
    return 0.62 * static_cast<double>(chunk) /
           static_cast<double>(std::max<std::int64_t>(shape_.chunks - 1, 1));
  }
  std::string colour(ActionKind kind, std::int64_t chunk) const {
    using Rgb = std::array<int, 3>;
    Rgb base = kind == ActionKind::kForward          ? Rgb{9, 105, 218}
               : kind == ActionKind::kBackwardWeight ? Rgb{26, 127, 55}
                                                     : Rgb{188, 76, 0};
    double light = lightness(chunk);
    for (int& part : base) part += static_cast<int>(std::lround((255 - part) * light));
    return fmt::format("#{:02x}{:02x}{:02x}", base[0], base[1], base[2]);
  }
  std::string_view ink(std::int64_t chunk) const {
    return lightness(chunk) > 0.4 ? "#1f2328" : "#ffffff";
  }
  static std::string_view meaning(ActionKind kind) {
    switch (kind) {
      case ActionKind::kForward:
        return "forward";
      case ActionKind::kBackwardInput:
        return "backward of inputs";
      case ActionKind::kBackwardWeight:
        return "backward of weights";
      default:
        return "backward";
    }
  }

  // Labels at 1, 2 or 5 times a power of ten, at least 60 pixels apart.
  void scale() {
    double bottom = kTop + kRow * static_cast<double>(report_.timeline.size());
    double power = std::pow(10.0, std::floor(std::log10(60 / unit_)));
    double lead = 60 / unit_ / power;
    double step = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
    for (std::int64_t i = 0; static_cast<double>(i) * step <= report_.span * (1 + 1e-9); ++i) {
      double x = kLeft + static_cast<double>(i) * step * unit_;
      put(R"(<path d="M{0:.1f} {1}V{2}" stroke="#d1d9e0"/>)", x, kTop - 4, bottom + 6);
      put(R"(<text x="{:.1f}" y="{}" text-anchor="middle" fill="#59636e">{:g}</text>)", x,
          bottom + 20, static_cast<double>(i) * step);
    }
    put(R"(<text x="{:.1f}" y="{}" fill="#59636e">time</text>)", kLeft + report_.span * unit_ + 14,
        bottom + 20);
    put(R"(<text x="{:.1f}" y="{}" fill="#59636e">held</text>)", kLeft + report_.span * unit_ + 14,
        kTop - 8);
  }

  void row(std::size_t rank) {
    double y = kTop + kRow * static_cast<double>(rank);
    put(R"(<text x="{}" y="{}" text-anchor="end">rank {}</text>)", kLeft - 10, y + 19, rank);
    for (const TimedAction& timed : report_.timeline[rank]) {
      const Action& action = timed.action;
      double x = kLeft + timed.begin * unit_, width = (timed.end - timed.begin) * unit_;
      std::int64_t stage = shape_.stage_at(static_cast<std::int64_t>(rank), action.chunk);
      put(R"(<g><title>{}, micro-batch {}, stage {}, time {:g} to {:g}</title>)",
          meaning(action.kind), action.micro_batch, stage, timed.begin, timed.end);
      put(R"(<rect x="{:.2f}" y="{}" width="{:.2f}" height="{}" fill="{}" stroke="#ffffff" )"
          R"(stroke-width="0.8"/>)",
          x, y + 2, width, kRow - 4, colour(action.kind, action.chunk));
      std::string number = concat(action.micro_batch);
      if (width >= 8 * static_cast<double>(number.size())) {
        put(R"(<text x="{:.2f}" y="{}" text-anchor="middle" fill="{}">{}</text>)", x + width / 2,
            y + 19, ink(action.chunk), number);
      }
      put("</g>");
    }
    put(R"(<text x="{:.1f}" y="{}" fill="#59636e">{}</text>)", kLeft + report_.span * unit_ + 14,
        y + 19, report_.peak_in_flight[rank]);
  }

  bool occurs(ActionKind kind) const {
    return std::ranges::any_of(report_.timeline, [&](const auto& row) {
      return std::ranges::any_of(
          row, [&](const TimedAction& timed) { return timed.action.kind == kind; });
    });
  }

  void legend(double y) {
    double x = kLeft;
    for (ActionKind kind : {ActionKind::kForward, ActionKind::kBackward, ActionKind::kBackwardInput,
                            ActionKind::kBackwardWeight}) {
      if (!occurs(kind)) continue;
      for (std::int64_t chunk = 0; chunk < shape_.chunks; ++chunk, x += 15) {
        put(R"(<rect x="{}" y="{}" width="14" height="14" fill="{}"/>)", x, y - 11,
            colour(kind, chunk));
      }
      put(R"(<text x="{}" y="{}">{}</text>)", x + 5, y, meaning(kind));
      x += 25 + 7 * static_cast<double>(meaning(kind).size());
    }
    if (shape_.chunks > 1) {
      put(R"(<text x="{}" y="{}" fill="#59636e">lighter: later stage of the rank</text>)", x, y);
    }
  }

  const PipelineShape& shape_;
  const ScheduleReport& report_;
  std::int64_t micro_batches_;
  double unit_ = 1;  // pixels per unit of time
  std::string text_;
};

}  // namespace

std::string schedule_svg(const PipelineShape& shape, const ScheduleReport& report,
                         std::int64_t micro_batches) {
  return ScheduleSvg(shape, report, micro_batches).draw();
}

}  // namespace bev
