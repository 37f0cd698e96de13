// The configuration of a run as its checkpoints keep it, and how two of them differ.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/manifest.h"

namespace bev {

class FieldList;

// The resolved values of all sections that say what is computed. What is only said about it (logs,
// traces, checkpoints) is left out.
std::vector<ConfigEntry> config_entries(const FieldList& list);

// A table of the values that differ, one line each; "" when none does.
std::string config_difference(const std::vector<ConfigEntry>& checkpoint,
                              const std::vector<ConfigEntry>& run);

}  // namespace bev
