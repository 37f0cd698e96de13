// How much memory the machine could still hand out.
#pragma once

#include <string>
#include <vector>

namespace bev {

// Bytes that this process could take without taking from anybody: of the system, or of what the
// control groups around it leave. 0 where neither says.
double free_host_memory();
// Of the groups in these folders: what the tightest leaves; infinity where none has a limit.
double free_group_memory(const std::vector<std::string>& groups);

}  // namespace bev
