#include "base/control_group.h"

#include <fstream>
#include <iterator>

#include "base/text.h"

namespace bev {

namespace {
std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}
}  // namespace

std::vector<std::string> control_groups(const std::string& membership, const std::string& root) {
  std::string path;
  for (const std::string& line : split(membership, '\n')) {
    if (line.starts_with("0::/")) path = line.substr(3);
  }
  std::vector<std::string> groups;
  for (; path.size() > 1; path.resize(path.rfind('/'))) groups.push_back(root + path);
  groups.push_back(root);
  return groups;
}

std::vector<std::string> control_groups() {
  return control_groups(text_of("/proc/self/cgroup"), "/sys/fs/cgroup");
}

std::string group_text(const std::string& group, const char* file) {
  return text_of(concat(group, "/", file));
}

}  // namespace bev
