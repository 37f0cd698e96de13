// Host-side collectives of the checkpoint code. All ranks of the group must call.
#pragma once

#include <string>
#include <vector>

#include "comm/group.h"

namespace bev {

// Logical or over all ranks.
bool any_rank(Group& world, bool mine, const char* what);

// Texts of all ranks on rank 0; empty elsewhere.
std::vector<std::string> gather_texts(Group& world, std::string mine);
// Broadcasts the text of rank `root` to every rank.
std::string broadcast_text(Group& world, std::string text, int root);

}  // namespace bev
