#include "base/host_memory.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

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

// A file that holds one number, or "max".
double number_in(const std::string& path) {
  if (!path_exists(path)) return kUnknown;
  std::string text = read_file(path);
  char* end = nullptr;
  double number = std::strtod(text.c_str(), &end);
  return end == text.c_str() ? kUnknown : number;
}

// What files have been read into counts as used, but would be given up.
double free_of_group() {
  const std::string folder = "/sys/fs/cgroup/";
  double limit = number_in(folder + "memory.max"), used = number_in(folder + "memory.current");
  if (std::isinf(limit) || std::isinf(used)) return kUnknown;
  for (const std::string& line : split(read_file(folder + "memory.stat"), '\n')) {
    if (line.starts_with("inactive_file ")) used -= std::strtod(line.c_str() + 14, nullptr);
  }
  return std::max(limit - used, 0.0);
}

}  // namespace

double free_host_memory() {
  double bytes = std::min(free_of_system(), free_of_group());
  return std::isinf(bytes) ? 0 : bytes;
}

}  // namespace bev
