// Groups of ranks that are threads of one process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/peer_memory.h"
#include "comm/thread_fabric.h"

namespace bev {

// State shared by the members of a group: incomplete operations and messages. Opaque here.
class ThreadMeeting;

std::shared_ptr<ThreadMeeting> make_thread_meeting(ThreadFabric& fabric, std::string name,
                                                   std::vector<int> members);
// Creates the group object of the member with index `rank`, whose data lies in `memory`.
std::unique_ptr<Group> make_thread_group(std::shared_ptr<ThreadMeeting> meeting, int rank,
                                         std::shared_ptr<PeerMemory> memory);

}  // namespace bev
