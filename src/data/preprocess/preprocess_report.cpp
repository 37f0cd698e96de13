#include "data/preprocess/preprocess_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

namespace bev {

namespace {
constexpr std::int64_t kSkippedShown = 20;
constexpr double kRedrawSeconds = 0.2, kLineSeconds = 10;
}  // namespace

PreprocessReport::PreprocessReport(const StopSignal& signal)
    : signal_(signal), terminal_(::isatty(STDERR_FILENO) == 1) {}

void PreprocessReport::found(const TextInputs& inputs) {
  if (!silent_) log_info(to_text(inputs));
}

void PreprocessReport::advanced(const PreprocessProgress& progress) {
  double now = monotonic_seconds();
  if (!started_) {
    started_ = true;
    started_at_ = reported_at_ = now;
    bytes_before_ = progress.bytes;
    std::string text = "tokenizing";
    if (progress.input_bytes > 0) {
      text += concat(" ", format_bytes(static_cast<double>(progress.input_bytes)));
    }
    if (progress.part > 0) {
      text += concat(", going on with part ", progress.part + 1, " of ", progress.parts);
    }
    log_info(text);
  }
  progress_ = progress;
  if (now - reported_at_ < (terminal_ ? kRedrawSeconds : kLineSeconds)) return;
  reported_at_ = now;
  std::string text =
      preprocess_progress_text(progress, progress.bytes - bytes_before_, now - started_at_);
  if (!terminal_) {
    log_info(text);
    return;
  }
  text = concat("\r", text, "\x1b[K");
  // Errors of writing a progress line are ignored.
  [[maybe_unused]] ssize_t put = ::write(STDERR_FILENO, text.data(), text.size());
}

void PreprocessReport::skipped(const std::string& what) {
  if (++skipped_ <= kSkippedShown) log_warning(concat(what, "; skipped"));
  if (skipped_ == kSkippedShown) log_warning("more such documents are only counted");
}

std::string PreprocessReport::summary() const {
  double seconds = std::max(monotonic_seconds() - started_at_, 1e-9);
  auto bytes = static_cast<double>(progress_.bytes - bytes_before_);
  if (bytes == 0) return "";
  std::string text =
      fmt::format("tokenized {} in {}", format_bytes(bytes), format_duration(seconds));
  if (seconds >= 1) text += fmt::format(" ({:.1f} MB/s)", bytes / seconds / 1e6);
  return text;
}

std::string preprocess_progress_text(const PreprocessProgress& progress, std::int64_t bytes,
                                     double seconds) {
  double done = static_cast<double>(bytes), rate = done / std::max(seconds, 1e-9);
  std::string text;
  if (progress.input_bytes > 0) {
    double share = static_cast<double>(progress.bytes) / static_cast<double>(progress.input_bytes);
    text += fmt::format("{:.0f}%  ", std::floor(100 * std::min(share, 1.0)));
  }
  double documents = static_cast<double>(progress.documents) / std::max(seconds, 1e-9);
  text +=
      fmt::format("{:.1f} MB/s, {} documents/s", rate / 1e6, format_count(std::round(documents)));
  if (progress.input_bytes > 0 && done > 0) {
    double left =
        static_cast<double>(std::max<std::int64_t>(progress.input_bytes - progress.bytes, 0));
    text += fmt::format(", {} left", format_duration(left / rate));
  }
  if (progress.parts > 1) text += fmt::format(", part {} of {}", progress.part + 1, progress.parts);
  return text;
}

}  // namespace bev
