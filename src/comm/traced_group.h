// Groups whose operations are spans of a trace: where they are posted, where they are waited for,
// and, from the one to the end of the other, that they are under way.
#pragma once

#include "comm/group.h"

namespace bev {

class Trace;

// Makes the groups of another maker, traced; just these where the trace is null. Groups of one rank
// have nothing to show.
class TracedGroupMaker final : public GroupMaker {
 public:
  TracedGroupMaker(GroupMaker& maker, Trace* trace) : maker_(maker), trace_(trace) {}
  std::unique_ptr<Group> make_group(std::unique_ptr<Group> host) override;

 private:
  GroupMaker& maker_;
  Trace* trace_;
};

}  // namespace bev
