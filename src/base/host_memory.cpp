#include "base/host_memory.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "base/control_group.h"
#include "base/file.h"
#include "base/text.h"

namespace bev {

namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

double free_of_system() {
  constexpr std::string_view kKey = "MemAvailable:";
  if (!path_exists("/proc/meminfo")) return kUnknown;
  for (const std::string& line : split(read_file("/proc/meminfo"), '\n')) {
    if (line.starts_with(kKey)) return std::strtod(line.c_str() + kKey.size(), nullptr) * 1024;
  }
  return kUnknown;
}

// Number at the start of the text; "max" gives kUnknown.
double number_in(const std::string& text) {
  char* end = nullptr;
  double number = std::strtod(text.c_str(), &end);
  return end == text.c_str() ? kUnknown : number;
}

// The page cache counts as used memory but is reclaimable, so inactive_file is subtracted.
double free_of_group(const std::string& group) {
  constexpr std::string_view kKey = "inactive_file ";
  double limit = number_in(group_text(group, "memory.max"));
  double used = number_in(group_text(group, "memory.current"));
  if (std::isinf(limit) || std::isinf(used)) return kUnknown;
  for (const std::string& line : split(group_text(group, "memory.stat"), '\n')) {
    if (line.starts_with(kKey)) used -= number_in(line.substr(kKey.size()));
  }
  return std::max(limit - used, 0.0);
}

}  // namespace

double free_group_memory(const std::vector<std::string>& groups) {
  double bytes = kUnknown;
  for (const std::string& group : groups) bytes = std::min(bytes, free_of_group(group));
  return bytes;
}

double free_host_memory() {
  double bytes = std::min(free_of_system(), free_group_memory(control_groups()));
  return std::isinf(bytes) ? 0 : bytes;
}

}  // namespace bev
