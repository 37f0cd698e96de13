// Sizes of a model that follow others: a preset of which some sizes were changed is a smaller or
// larger model of the same kind.
#pragma once

#include <string_view>

#include "base/function_ref.h"
#include "models/config.h"

namespace bev {

// `model` is the preset `base`, which is canonical, with the changes of the user. Sizes that the
// user did not give follow those that were changed: query groups the heads, head sizes and widths
// of MLPs the hidden size, lists with an entry for each layer the layers, the router's choices the
// experts. `given` says whether the user gave the field of a flag (without dashes).
void follow_sizes(const ModelConfig& base, FunctionRef<bool(std::string_view flag)> given,
                  ModelConfig& model);

}  // namespace bev
