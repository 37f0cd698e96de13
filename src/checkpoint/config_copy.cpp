#include "checkpoint/config_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "base/fields.h"
#include "base/json_check.h"

namespace bev {

std::vector<ConfigEntry> config_entries(const FieldList& list) {
  constexpr std::array<std::string_view, 3> kLeftOut = {"checkpointing", "logging", "profiling"};
  std::vector<ConfigEntry> entries;
  for (const auto& entry : list.entries()) {
    if (std::ranges::find(kLeftOut, entry->section) != kLeftOut.end()) continue;
    entries.push_back({entry->section, entry->field.name(), entry->field.text()});
  }
  return entries;
}

void apply_config(const std::vector<ConfigEntry>& entries, const FieldList& list,
                  const std::string& source) {
  for (const ConfigEntry& entry : entries) {
    Field* field = list.find(entry.name);
    BEV_CHECK(field != nullptr, ErrorKind::kInput, source, ": the configuration has ",
              quote(entry.name), ", which this program does not know; a newer one wrote it");
    if (field->text() == entry.value) continue;
    std::string problem = field->set_text(entry.value);
    BEV_CHECK(problem.empty(), ErrorKind::kInput, source, ": ", entry.name, ": ", problem);
  }
}

std::vector<ValueDifference> config_differences(const std::vector<ConfigEntry>& first,
                                                const std::vector<ConfigEntry>& second) {
  std::map<std::string, std::string> before, now;
  for (const ConfigEntry& entry : first) before[entry.name] = entry.value;
  for (const ConfigEntry& entry : second) now[entry.name] = entry.value;
  auto shown = [](const std::map<std::string, std::string>& values, const std::string& name) {
    auto found = values.find(name);
    if (found == values.end()) return std::string("(unknown)");
    return found->second.empty() ? std::string("(none)") : found->second;
  };
  std::vector<ValueDifference> out;
  auto add = [&](const std::string& name) {
    out.push_back({"--" + name, shown(before, name), shown(now, name),
                   before.contains(name) && now.contains(name)});
  };
  for (const ConfigEntry& entry : second) {
    if (!before.contains(entry.name) || before[entry.name] != entry.value) add(entry.name);
  }
  for (const ConfigEntry& entry : first) {
    if (!now.contains(entry.name)) add(entry.name);
  }
  return out;
}

std::string difference_table(const std::vector<ValueDifference>& differences,
                             std::string_view first, std::string_view second) {
  if (differences.empty()) return "";
  std::string text = fmt::format("  {:<40} {:<24} {}", "", first, second);
  for (const ValueDifference& value : differences) {
    text += fmt::format("\n  {:<40} {:<24} {}", value.name, value.first, value.second);
  }
  return text;
}

}  // namespace bev
