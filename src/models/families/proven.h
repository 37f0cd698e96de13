// What the tests of the model families ran: tests/golden_models compares this with its fixtures and
// tries the refused settings. `bevatron help models` prints it.
#pragma once

#include <string_view>
#include <vector>

namespace bev {

struct ProvenFamily {
  std::string_view name;
  // Folders of tests/golden/models: read, written back bit for bit, trained, and generated from.
  std::vector<std::string_view> fixtures;
  // Layouts that gave transformers' gradients, in the short notation of `verify`.
  std::vector<std::string_view> layouts;
};
struct RefusedSetting {
  std::string_view family, key, value;  // value: JSON
};

// Sorted by family.
std::vector<ProvenFamily> proven_families();
std::vector<RefusedSetting> refused_settings();

}  // namespace bev
