#include "app/yaml_file.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace bev {

namespace {

// Finds the line, counted from 0, where the second document of a text starts; -1: none.
// YAML::LoadAll would loop forever, and take all memory, if the parser finds documents without
// advancing (a line of commas).
class SecondDocument final : public YAML::EventHandler {
 public:
  static int find(const std::string& content) {
    std::istringstream stream(content);
    YAML::Parser parser(stream);
    SecondDocument seen;
    while (seen.count_ < 2 && parser.HandleNextDocument(seen)) {
    }
    return seen.count_ < 2 ? -1 : seen.line_;
  }
  void OnDocumentStart(const YAML::Mark& mark) override {
    ++count_;
    line_ = mark.line;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  int count_ = 0, line_ = 0;
};

class Reader {
 public:
  Reader(const std::string& path, const std::vector<std::string>& sections)
      : path_(path), sections_(sections) {}

  YamlFile read(const std::string& content) {
    int second = SecondDocument::find(content);
    if (second >= 0) {
      complain(second, "a second document starts; keep one per file");
      return std::move(file_);
    }
    YAML::Node document = YAML::Load(content);
    if (!document.IsNull()) read_map(document, "");
    return std::move(file_);
  }

 private:
  void complain(int line, std::string_view what) {
    file_.problems.push_back(concat(path_, ":", line + 1, ": ", what));
  }
  void complain(const YAML::Node& node, std::string_view what) { complain(node.Mark().line, what); }

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
