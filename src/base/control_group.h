// The control groups (version 2) around this process: what its system, container or job limits it
// to. Groups are nested, and each of them limits all that is within.
#pragma once

#include <string>
#include <vector>

namespace bev {

// Folders of the group that `membership` (the text of /proc/self/cgroup) names and of all around
// it, innermost first, below the folder `root` where groups are mounted. The last is root itself.
std::vector<std::string> control_groups(const std::string& membership, const std::string& root);
// Of this process.
std::vector<std::string> control_groups();

// A file of a group; empty where there is none, or none that may be read.
std::string group_text(const std::string& group, const char* file);

}  // namespace bev
