// Groups that record their operations in a trace: the post, the wait, and the time in flight
// between them.
#pragma once

#include "comm/group.h"

namespace bev {

class Trace;

// Wraps the groups of another maker for tracing; returns them unwrapped if the trace is null or the
// group has one rank.
class TracedGroupMaker final : public GroupMaker {
 public:
  TracedGroupMaker(GroupMaker& maker, Trace* trace) : maker_(maker), trace_(trace) {}
  std::unique_ptr<Group> make_group(std::unique_ptr<Group> host) override;

 private:
  GroupMaker& maker_;
  Trace* trace_;
};

}  // namespace bev
