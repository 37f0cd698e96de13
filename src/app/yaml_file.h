// A YAML configuration file as a flat list of keys with their texts, lines and sections.
#pragma once

#include <string>
#include <vector>

namespace bev {

struct YamlKey {
  std::string section;  // "" at the top level
  std::string name;
  std::vector<std::string> values;  // one for a scalar, the items for a list
  int line = 0;
};

struct YamlFile {
  std::vector<YamlKey> keys;
  std::vector<std::string> problems;  // each "FILE:LINE: what is wrong"
};

// Reads a file of keys and of sections (maps whose key is in `sections`) with keys. Nothing is
// thrown: a missing or malformed file is a problem. A key given twice is left to the reader of the
// list.
YamlFile read_yaml(const std::string& path, const std::vector<std::string>& sections);

}  // namespace bev
