// The golden models under tests/golden/models.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "models/families/hf_config.h"

namespace bev::test {

inline std::string golden_folder() { return BEV_SOURCE_DIR "/tests/golden/models"; }

// Names of all golden models, sorted.
inline std::vector<std::string> golden_models() {
  std::vector<std::string> names = list_directory(golden_folder());
  std::sort(names.begin(), names.end());
  return names;
}
inline std::string golden_path(std::string_view model, std::string_view file) {
  return join_path(join_path(golden_folder(), model), file);
}
inline HfConfig golden_config(std::string_view model, std::string_view file = "config.json") {
  return HfConfig::parse(read_file(golden_path(model, file)));
}

}  // namespace bev::test
