#include "base/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "base/clock.h"
#include "base/log.h"

namespace bev {

namespace {

constexpr double kGigabyte = 1e9;

// "50 s", "12 min", "3 h 20 min"
std::string duration_text(double seconds) {
  constexpr double kMinute = 60, kHour = 3600, kMostSeconds = 100;
  if (seconds < kMostSeconds) return fmt::format("{:.0f} s", std::ceil(seconds));
  if (seconds < 2 * kHour) return fmt::format("{:.0f} min", std::ceil(seconds / kMinute));
  double hours = std::floor(seconds / kHour);
  return fmt::format("{:.0f} h {:.0f} min", hours, (seconds - hours * kHour) / kMinute);
}

}  // namespace

std::string progress_text(const ProgressState& state) {
  auto done = static_cast<double>(state.done), total = static_cast<double>(state.total);
  double share = total > 0 ? done / total : 1;
  auto fresh = static_cast<double>(state.done - state.skipped);
  std::string text = fmt::format("{:.2f} of {:.2f} GB, {:.0f}%", done / kGigabyte,
                                 total / kGigabyte, std::floor(100 * share));
  if (state.seconds <= 0 || fresh <= 0) return text;
  double speed = fresh / state.seconds;
  return text + fmt::format(", {:.2f} GB/s, {} left", speed / kGigabyte,
                            duration_text((total - done) / speed));
}

struct Progress::Clock {
  std::string what;
  double interval;
  ProgressState state = {};
  double begun = monotonic_seconds(), said = begun;
  std::mutex mutex = {};
};

Progress::Progress(std::string_view what, std::uint64_t total, double interval)
    : clock_(new Clock{std::string(what), interval}) {
  clock_->state.total = total;
}

Progress::~Progress() = default;

void Progress::add(std::uint64_t bytes) {
  std::lock_guard lock(clock_->mutex);
  ProgressState& state = clock_->state;
  state.done = std::min(state.done + bytes, state.total);
  double now = monotonic_seconds();
  if (now - clock_->said < clock_->interval) return;
  clock_->said = now;
  state.seconds = now - clock_->begun;
  log_info(fmt::format("{}: {}", clock_->what, progress_text(state)));
}

void Progress::skip(std::uint64_t bytes) {
  std::lock_guard lock(clock_->mutex);
  clock_->state.done += bytes;
  clock_->state.skipped += bytes;
}

}  // namespace bev
