#include "base/environment.h"

#include <unistd.h>

#include <string_view>

namespace bev {

std::map<std::string, std::string> environment_variables() {
  std::map<std::string, std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    std::string_view text = *entry;
    std::size_t equals = text.find('=');
    if (equals == text.npos) continue;
    all.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return all;
}

}  // namespace bev
