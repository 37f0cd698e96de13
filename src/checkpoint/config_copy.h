// The configuration of a run as its checkpoints keep it, and how two of them differ.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"

namespace bev {

class FieldList;

// The resolved values of all sections that say what is computed. What is only said about it (logs,
// traces, checkpoints) is left out.
std::vector<ConfigEntry> config_entries(const FieldList& list);

// Sets the list's fields to what a checkpoint's configuration says. Error(kInput) naming `source`
// for a value or a field that this program does not know.
void apply_config(const std::vector<ConfigEntry>& entries, const FieldList& list,
                  const std::string& source);

// A value that two have differently, as texts to show.
struct ValueDifference {
  std::string name, first, second;
};
std::vector<ValueDifference> config_differences(const std::vector<ConfigEntry>& first,
                                                const std::vector<ConfigEntry>& second);
// One line each, under the names of the two; "" when there are none.
std::string difference_table(const std::vector<ValueDifference>& differences,
                             std::string_view first, std::string_view second);

}  // namespace bev
