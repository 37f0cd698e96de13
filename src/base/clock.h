// Time: a monotonic clock for durations and the wall clock for time stamps.
#pragma once

#include <cstdint>
#include <string>

namespace bev {

// Seconds since some fixed moment; never goes backwards.
double monotonic_seconds();
std::int64_t monotonic_nanoseconds();  // of the same clock

// Microseconds since 1970-01-01 00:00:00 UTC.
std::int64_t unix_microseconds();

// "YYYY-MM-DD HH:MM:SS.ffffff" in local time.
std::string local_timestamp(std::int64_t microseconds);
std::string local_timestamp();  // of now

}  // namespace bev
