// How much memory the machine could still hand out.
#pragma once

namespace bev {

// Bytes that this process could take without taking from anybody: of the system, or of what its
// control group leaves it. 0 where neither says.
double free_host_memory();

}  // namespace bev
