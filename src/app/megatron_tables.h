// Megatron-LM's flags as tables, one for each thing that can become of them. docs/from-megatron.md,
// `help megatron` and what commands say to a flag that they do not have are made of these.
#pragma once

#include <span>
#include <string_view>

namespace bev {

// Flags that share an explanation. Names are separated by blanks; "=" behind a name means that one
// value follows, "+" any number of them.
struct MegatronGroup {
  std::string_view names;
  std::string_view text;
  std::string_view more = {};
  std::string_view command = "train";
};

// Flags that a command has, by the same name.
std::span<const MegatronGroup> acting_groups();
// Flags that are accepted and change no result; `text` says why.
std::span<const MegatronGroup> no_switch_groups();
// Flags with another name here: `text` is what to give, `more` what there is to know about it.
std::span<const MegatronGroup> renamed_groups();
// Flags that would change something; `text` says why they do not, and what to do.
std::span<const MegatronGroup> refused_groups();
// Flags of a capability, `text`, that is not built; `more` is what there is instead. A flag moves
// from here to acting_groups() with the capability.
std::span<const MegatronGroup> not_built_groups();

}  // namespace bev
