// Reads a YAML configuration file as a flat list of keys with values, lines and sections.
#pragma once

#include <string>
#include <vector>

namespace bev {

struct YamlKey {
  std::string section;  // "" at the top level
  std::string name;
  std::vector<std::string> values;  // one for a scalar, the items of a list
  int line = 0;
};

struct YamlFile {
  std::vector<YamlKey> keys;
  std::vector<std::string> problems;  // each "FILE:LINE: message"
};

// Reads a file of keys and of sections (maps whose key is in `sections`) with keys. Does not throw:
// a missing or malformed file is a problem. Duplicate keys are left to the caller.
YamlFile read_yaml(const std::string& path, const std::vector<std::string>& sections);

}  // namespace bev
