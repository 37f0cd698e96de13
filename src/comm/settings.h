// The processes of a run must be started alike: what they were given, as lines to compare.
#pragma once

#include <string>
#include <vector>

namespace bev {

// "--lr 0.1": sorted, each once.
using Settings = std::vector<std::string>;

std::string to_text(const Settings& settings);
Settings settings_of(const std::string& text);

// What two processes do not share, as a phrase; "" when there is nothing.
std::string settings_difference(const Settings& here, const Settings& there);

}  // namespace bev
