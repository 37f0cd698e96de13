// Objectives on numbers of JSON: the inputs by name, and the results as JSON.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "data/sft/json_rows.h"
#include "posttrain/objective_rules.h"

namespace bev {

// Sets the settings of a rule from the members of an object but those in `others`. Throws
// Error(kInput) naming the file and the member if one is unknown or has no valid value.
void read_settings(ObjectiveRule& rule, const JsonPlace& object,
                   std::span<const std::string_view> others = {});

// {"objective", "loss", "losses", "metrics", "grads"} of the fields of an object. Throws
// Error(kInput) naming what is unknown, missing or of the wrong length.
std::string objective_json(ObjectiveRule rule, const JsonPlace& input);

}  // namespace bev
