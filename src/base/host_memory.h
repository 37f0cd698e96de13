// Free host memory, by the system's and the control groups' account.
#pragma once

#include <string>
#include <vector>

namespace bev {

// Bytes that this process can allocate without evicting others: the minimum of the system's
// available memory and what its control groups leave. 0 if neither is known.
double free_host_memory();
// Bytes left by the tightest of the groups in these folders; infinity if none has a limit.
double free_group_memory(const std::vector<std::string>& groups);

}  // namespace bev
