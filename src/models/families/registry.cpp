#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json_check.h"
#include "models/families/family_list.h"
#include "models/model.h"

namespace bev {

namespace {
// A name without owner, case and dashes: that of "meta-llama/Llama-3.2-1B" is "llama3.21b".
std::string bare(std::string_view name) {
  std::string out;
  for (char c : name.substr(name.rfind('/') + 1)) {
    if (c == '-' || c == '_') continue;
    out.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  return out;
}

// Returns "known ones are A, B; did you mean B?".
std::string known_text(std::string_view name, const std::vector<std::string>& known) {
  auto longer = std::find_if(known.begin(), known.end(), [name](const std::string& candidate) {
    return !name.empty() && (candidate.starts_with(name) || bare(candidate) == bare(name));
  });
  std::string nearest = longer != known.end() ? *longer : nearest_name(name, known);
  std::string text = concat("known ones are ", join(known, ", "));
  return nearest.empty() ? text : concat(text, "; did you mean ", nearest, "?");
}

// Values of model_type for models of another family: the same weight names and keys, in other sizes
// or with other tokenizers.
constexpr std::pair<std::string_view, std::string_view> kOtherTypes[] = {
    {"kimi_k2", "deepseek_v3"}, {"xlm-roberta", "roberta"}, {"camembert", "roberta"}};

std::string_view family_of(std::string_view type) {
  for (const auto& [name, family] : kOtherTypes) {
    if (type == name) return family;
  }
  return type;
}
}  // namespace

const std::vector<ModelFamily>& families() {
  static const std::vector<ModelFamily> kFamilies = {
#define BEV_FAMILY(family) family(),
#include "models/families/families.def"
  };
  return kFamilies;
}

const ModelFamily& find_family(std::string_view name, std::string_view source) {
  std::vector<std::string> known;
  for (const ModelFamily& family : families()) {
    if (family.name == family_of(name)) return family;
    known.push_back(family.name);
  }
  BEV_FAIL(ErrorKind::kInput, source, source.empty() ? "" : ": ", "model type ", quote(name),
           " is not supported; ", known_text(name, known));
}

std::vector<std::string> model_types(std::string_view family) {
  std::vector<std::string> types = {std::string(family)};
  for (const auto& [name, of] : kOtherTypes) {
    if (of == family) types.emplace_back(name);
  }
  return types;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const ModelFamily& family : families()) {
    for (const Preset& preset : family.presets) names.push_back(preset.name);
  }
  return names;
}

ModelConfig preset(std::string_view name) {
  for (const ModelFamily& family : families()) {
    for (const Preset& preset : family.presets) {
      if (preset.name == name) return canonical(preset.config);
    }
  }
  BEV_FAIL(ErrorKind::kConfig, "--preset: ", quote(name), " is not known; ",
           known_text(name, preset_names()));
}

ModelConfig family_defaults(std::string_view name) {
  std::vector<std::string> known;
  for (const ModelFamily& family : families()) {
    if (family.name == family_of(name)) return canonical(family.presets.front().config);
    known.push_back(family.name);
  }
  BEV_FAIL(ErrorKind::kConfig, "--family: ", quote(name), " is not known; ",
           known_text(name, known));
}

std::int64_t count_parameters(const ModelConfig& config) {
  std::int64_t count = 0;
  for (const Param& param : declare_params(config)) count += param.shape.numel();
  return count;
}

}  // namespace bev
