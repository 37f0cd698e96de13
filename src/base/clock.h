// Time: a monotonic clock for durations and the wall clock for time stamps.
#pragma once

#include <cstdint>
#include <string>

namespace bev {

// Seconds since an arbitrary fixed point; never decreases.
double monotonic_seconds();
std::int64_t monotonic_nanoseconds();  // same clock

// Microseconds since 1970-01-01 00:00:00 UTC.
std::int64_t unix_microseconds();

// "YYYY-MM-DD HH:MM:SS.ffffff" in local time.
std::string local_timestamp(std::int64_t microseconds);
std::string local_timestamp();  // of the current time

}  // namespace bev
