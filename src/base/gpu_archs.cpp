#include "base/gpu_archs.h"

#include <charconv>
#include <vector>

#include "base/text.h"

namespace bev {

namespace {
struct Arch {
  int number = 0;
  bool exact = false;  // the name ends with a letter
  bool ptx = false;
};

Arch parse_arch(std::string_view name) {
  Arch arch;
  arch.ptx = !name.ends_with("-real");
  name = name.substr(0, name.find('-'));
  const char* end = name.data() + name.size();
  arch.exact = std::from_chars(name.data(), end, arch.number).ptr != end;
  return arch;
}
}  // namespace

bool archs_fit(std::string_view archs, int arch) {
  for (const std::string& name : split(archs, ',')) {
    Arch built = parse_arch(name);
    if (built.number == arch) return true;
    if (built.exact || built.number > arch) continue;
    if (built.ptx || built.number / 10 == arch / 10) return true;
  }
  return false;
}

std::string archs_text(std::string_view archs) {
  std::vector<std::string> names;
  for (const std::string& name : split(archs, ',')) names.push_back(name.substr(0, name.find('-')));
  return join(names, " ");
}

std::size_t block_shared_memory(int arch) {
  constexpr std::size_t kKib = 1024;
  // The GPUs of 8.6, 8.9 and 12 share less between their blocks than those of data centers.
  if (arch / 10 == 8) return (arch == 80 || arch == 87 ? 163 : 99) * kKib;
  return (arch < 80 ? 64 : arch < 120 ? 227 : 99) * kKib;
}

}  // namespace bev
