#include "checkpoint/config_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/fields.h"

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

std::string config_difference(const std::vector<ConfigEntry>& checkpoint,
                              const std::vector<ConfigEntry>& run) {
  std::map<std::string, std::string> before, now;
  for (const ConfigEntry& entry : checkpoint) before[entry.name] = entry.value;
  for (const ConfigEntry& entry : run) now[entry.name] = entry.value;
  std::string text;
  auto shown = [](const std::map<std::string, std::string>& values, const std::string& name) {
    auto found = values.find(name);
    if (found == values.end()) return std::string("(unknown)");
    return found->second.empty() ? std::string("(none)") : found->second;
  };
  auto add = [&](const std::string& name) {
    text += fmt::format("\n  {:<40} {:<24} {}", "--" + name, shown(before, name), shown(now, name));
  };
  for (const ConfigEntry& entry : run) {
    if (!before.contains(entry.name) || before[entry.name] != entry.value) add(entry.name);
  }
  for (const ConfigEntry& entry : checkpoint) {
    if (!now.contains(entry.name)) add(entry.name);
  }
  if (text.empty()) return "";
  return fmt::format("  {:<40} {:<24} {}", "flag", "checkpoint", "now") + text;
}

}  // namespace bev
