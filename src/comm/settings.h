// Settings of a process as lines, to check that all processes of a run were started alike.
#pragma once

#include <string>
#include <vector>

namespace bev {

// Lines such as "--lr 0.1", sorted and unique.
using Settings = std::vector<std::string>;

std::string to_text(const Settings& settings);
Settings settings_of(const std::string& text);

// Describes the differences between two processes; "" if there are none.
std::string settings_difference(const Settings& here, const Settings& there);

}  // namespace bev
