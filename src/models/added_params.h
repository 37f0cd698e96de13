// Parameters that a run may add to a model that was trained without them.
#pragma once

#include <string_view>

#include "models/families/param_mapping.h"
#include "nn/adapter.h"

namespace bev {

// Whether a parameter, or what is kept of one of this name, is the head of a critic.
inline bool is_critic_name(std::string_view name) { return name.ends_with(kValueHead); }
// The same of adapters and critics. Where files and checkpoints have none they keep their initial
// values.
inline bool is_added_name(std::string_view name) {
  return is_adapter_name(name) || is_critic_name(name);
}

}  // namespace bev
