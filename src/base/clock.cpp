#include "base/clock.h"

#include <fmt/format.h>

#include <chrono>
#include <ctime>

namespace bev {

double monotonic_seconds() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::int64_t monotonic_nanoseconds() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::int64_t unix_microseconds() {
  auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

std::string local_timestamp(std::int64_t microseconds) {
  constexpr std::int64_t kPerSecond = 1'000'000;
  std::int64_t fraction = (microseconds % kPerSecond + kPerSecond) % kPerSecond;
  auto seconds = static_cast<std::time_t>((microseconds - fraction) / kPerSecond);
  std::tm day{};
  localtime_r(&seconds, &day);
  return fmt::format("{:04d}-{:02d}-{:02d} {:02d}:{:02d}:{:02d}.{:06d}", day.tm_year + 1900,
                     day.tm_mon + 1, day.tm_mday, day.tm_hour, day.tm_min, day.tm_sec, fraction);
}

std::string local_timestamp() { return local_timestamp(unix_microseconds()); }

}  // namespace bev
