// What ranks tell each other about checkpoints, from host to host. All ranks of the group call.
#pragma once

#include <string>
#include <vector>

#include "comm/group.h"

namespace bev {

// Whether it is so on any rank.
bool any_rank(Group& world, bool mine, const char* what);

// Texts of all ranks, on rank 0; none on others.
std::vector<std::string> gather_texts(Group& world, std::string mine);
// The text of rank `root`, on every rank.
std::string broadcast_text(Group& world, std::string text, int root);

}  // namespace bev
