#include "infer/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

namespace bev {

ProgressLine::ProgressLine(std::string unit, std::int64_t total)
    : unit_(std::move(unit)),
      total_(total),
      terminal_(::isatty(STDERR_FILENO) == 1),
      started_at_(monotonic_seconds()),
      shown_at_(started_at_) {}

void ProgressLine::advance(std::int64_t done, std::int64_t tokens) {
  constexpr double kRedrawSeconds = 0.2, kLineSeconds = 10;
  double now = monotonic_seconds();
  if (done == 0 || now - shown_at_ < (terminal_ ? kRedrawSeconds : kLineSeconds)) return;
  shown_at_ = now;
  std::string text = progress_text(unit_, done, total_, tokens, now - started_at_);
  if (!terminal_) return log_info(text);
  text = concat("\r", text, "\x1b[K");
  // Errors of writing a progress line are ignored.
  [[maybe_unused]] ssize_t put = ::write(STDERR_FILENO, text.data(), text.size());
}

std::string progress_text(const std::string& unit, std::int64_t done, std::int64_t total,
                          std::int64_t tokens, double seconds) {
  const auto finished = static_cast<double>(done), all = static_cast<double>(total);
  seconds = std::max(seconds, 1e-9);
  return fmt::format("{} of {} {}, {:.0f}%, {} tokens/s, {} left", done, total, unit,
                     std::floor(100 * finished / std::max(all, 1.0)),
                     format_count(std::round(static_cast<double>(tokens) / seconds)),
                     format_duration((all - finished) * seconds / std::max(finished, 1.0)));
}

}  // namespace bev
