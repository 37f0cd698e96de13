#include "app/yaml_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace bev {

namespace {

class Reader {
 public:
  Reader(const std::string& path, const std::vector<std::string>& sections)
      : path_(path), sections_(sections) {}

  YamlFile read(const std::string& content) {
    std::vector<YAML::Node> documents = YAML::LoadAll(content);
    if (documents.size() > 1) {
      complain(documents[1], "a second document starts; keep one per file");
    } else if (documents.size() == 1 && !documents[0].IsNull()) {
      read_map(documents[0], "");
    }
    return std::move(file_);
  }

 private:
  void complain(const YAML::Node& node, std::string_view what) {
    file_.problems.push_back(concat(path_, ":", node.Mark().line + 1, ": ", what));
  }

  void read_map(const YAML::Node& map, const std::string& section) {
    if (!map.IsMap()) return complain(map, "is not a map of keys; write `key: value` lines");
    for (const auto& pair : map) {
      if (!pair.first.IsScalar()) {
        complain(pair.first, "the key is not a name");
        continue;
      }
      const std::string& name = pair.first.Scalar();
      if (pair.second.is(map)) {
        complain(pair.first, concat(name, ": is an anchor that contains itself"));
      } else if (pair.second.IsMap() && section.empty()) {
        read_section(pair.first, pair.second);
      } else {
        read_value(pair.first, pair.second, section);
      }
    }
  }

  void read_section(const YAML::Node& key, const YAML::Node& map) {
    std::string name = key.Scalar();
    std::ranges::replace(name, '_', '-');
    if (std::ranges::find(sections_, name) != sections_.end()) return read_map(map, name);
    complain(key, concat(key.Scalar(), ": is a map, but no section; the sections are ",
                         join(sections_, ", ")));
  }

  void read_value(const YAML::Node& key, const YAML::Node& value, const std::string& section) {
    YamlKey out{section, key.Scalar(), {}, key.Mark().line + 1};
    if (value.IsScalar()) {
      out.values.push_back(value.Scalar());
    } else if (value.IsSequence()) {
      for (const YAML::Node& item : value) {
        if (!item.IsScalar()) {
          return complain(
              key, concat(out.name, ": its list holds ", item.is(value) ? "itself" : kind(item),
                          "; only plain values can be in it"));
        }
        out.values.push_back(item.Scalar());
      }
    } else {
      return complain(key, concat(out.name, ": is ", kind(value), "; give a value"));
    }
    file_.keys.push_back(std::move(out));
  }

  static const char* kind(const YAML::Node& node) {
    if (node.IsMap()) return "a map";
    if (node.IsSequence()) return "a list";
    return "empty";
  }

  const std::string& path_;
  const std::vector<std::string>& sections_;
  YamlFile file_;
};

}  // namespace

YamlFile read_yaml(const std::string& path, const std::vector<std::string>& sections) {
  try {
    return Reader(path, sections).read(read_file(path));
  } catch (const YAML::Exception& error) {
    return {{}, {concat(path, ":", error.mark.line + 1, ": is not YAML: ", error.msg)}};
  } catch (const Error& error) {
    return {{}, {concat("--config: ", error.what())}};
  }
}

}  // namespace bev
