// String helpers: concatenation of values for messages, splitting, nearest names, units.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

void append_text(std::string& out, std::string_view part);
void append_text(std::string& out, bool part);
void append_text(std::string& out, double part);  // shortest text that round-trips
void append_text(std::string& out, std::int64_t part);
void append_text(std::string& out, std::uint64_t part);
inline void append_text(std::string& out, const char* part) {
  append_text(out, std::string_view(part));
}
inline void append_text(std::string& out, char part) { out.push_back(part); }
template <std::signed_integral T>
void append_text(std::string& out, T part) {
  append_text(out, static_cast<std::int64_t>(part));
}
template <std::unsigned_integral T>
void append_text(std::string& out, T part) {
  append_text(out, static_cast<std::uint64_t>(part));
}

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string out;
  (append_text(out, parts), ...);
  return out;
}

std::vector<std::string> split(std::string_view text, char separator);
std::string join(std::span<const std::string> parts, std::string_view separator);
std::string_view trim(std::string_view text);

// Candidate nearest to `name` that may be it but for typing errors: in at most a quarter of the
// characters, or one in a short name, and half of a word between dashes. "" if there is none.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

std::string format_bytes(double bytes);       // "1.50 GiB"
std::string format_count(double count);       // "124.4M"
std::string format_duration(double seconds);  // "1h 02m 03s"

}  // namespace bev
