// Simulates pipeline schedules without tensors: checks that they are complete, in order and free of
// deadlock, and reports their duration, pipeline bubble and activations in flight.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace bev {

// Duration of one micro-batch on one stage. A full backward takes the sum of its halves; messages
// take no time.
struct ActionCosts {
  double forward = 1, backward_input = 1, backward_weight = 1;
};

struct TimedAction {
  Action action;  // a compute action
  double begin = 0, end = 0;
};

struct ScheduleReport {
  std::string problem;  // empty: complete and free of deadlock
  // By rank: maximum number of (micro-batch, stage) pairs after their forward and before the end of
  // their wgrad.
  std::vector<std::int64_t> peak_in_flight;
  std::vector<std::vector<TimedAction>> timeline;  // by rank
  double span = 0;                                 // from the first begin to the last end
  double bubble = 0;  // pipeline bubble: fraction of `span` in which the busiest rank is idle
};

// `schedules` has one entry per rank. Messages arrive in the order sent, separately for each stage
// boundary and direction; sends do not block.
ScheduleReport play_schedules(const PipelineShape& shape, const std::vector<Schedule>& schedules,
                              std::int64_t micro_batches, bool with_backward,
                              const ActionCosts& costs = {});

}  // namespace bev
