// Configuration stored in a checkpoint, and the difference of two configurations.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"

namespace bev {

class FieldList;

// Resolved values of all sections that affect the computation. Sections that do not (logs, traces,
// checkpoints) are omitted.
std::vector<ConfigEntry> config_entries(const FieldList& list);

// Sets the list's fields from a checkpoint's configuration. Throws Error(kInput) naming `source`
// for an unknown field or value.
void apply_config(const std::vector<ConfigEntry>& entries, const FieldList& list,
                  const std::string& source);

// A value that differs, as texts.
struct ValueDifference {
  std::string name, first, second;
  bool in_both = true;  // false: one of the configurations does not have it
};
std::vector<ValueDifference> config_differences(const std::vector<ConfigEntry>& first,
                                                const std::vector<ConfigEntry>& second);
// One line per difference, with the names of the two as header; "" if there are none.
std::string difference_table(const std::vector<ValueDifference>& differences,
                             std::string_view first, std::string_view second);

}  // namespace bev
