// Control groups (cgroup v2) of this process: the limits set by the system, the container or the
// job. Groups are nested, and each one limits everything inside it.
#pragma once

#include <string>
#include <vector>

namespace bev {

// Folders of the group named by `membership` (the text of /proc/self/cgroup) and of all its
// ancestors, innermost first, below the mount point `root`. The last one is root itself.
std::vector<std::string> control_groups(const std::string& membership, const std::string& root);
// Control groups of this process.
std::vector<std::string> control_groups();

// Content of a file of the group; empty if it is missing or not readable.
std::string group_text(const std::string& group, const char* file);

}  // namespace bev
