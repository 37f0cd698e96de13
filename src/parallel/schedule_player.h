// Plays schedules without tensors: whether they are complete, in order and free of deadlock, how
// long they take and what they hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/schedule.h"

namespace bev {

// Time of one micro-batch on one stage. A whole backward takes the sum of its halves; messages take
// none.
struct ActionCosts {
  double forward = 1, backward_input = 1, backward_weight = 1;
};

struct TimedAction {
  Action action;  // a computation
  double begin = 0, end = 0;
};

struct ScheduleReport {
  std::string problem;  // empty: complete and free of deadlock
  // Of each rank: micro-batches times stages that were forwarded and whose weights' gradients are
  // not done, at most.
  std::vector<std::int64_t> peak_in_flight;
  std::vector<std::vector<TimedAction>> timeline;  // of each rank
  double span = 0;                                 // from the first begin to the last end
  double bubble = 0;                               // share of it in which the busiest rank waits
};

// One schedule per rank. Messages arrive in the order sent, at each boundary between stages and in
// each direction by itself; nobody waits for a message to be taken.
ScheduleReport play_schedules(const PipelineShape& shape, const std::vector<Schedule>& schedules,
                              std::int64_t micro_batches, bool with_backward,
                              const ActionCosts& costs = {});

}  // namespace bev
