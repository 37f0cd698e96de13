// Pipeline schedules are data: a generator returns each stage's list of actions, one executor runs
// any list, and lists are checked without tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bev {

enum class ActionKind : std::uint8_t {
  kReceiveForward,  // activations from the stage before
  kForward,
  kSendForward,
  kReceiveBackward,  // gradients from the stage after
  kBackward,
  kSendBackward,
};
const char* name_of(ActionKind kind);  // "send forward"

struct Action {
  ActionKind kind;
  std::int64_t micro_batch = 0;
  bool operator==(const Action&) const = default;
};

using Schedule = std::vector<Action>;

// One forward, one backward: min(stages - stage - 1, micro_batches) forwards first, then pairs,
// then the backwards left over. Stages 1: forward and backward in turn.
Schedule schedule_1f1b(std::int64_t stages, std::int64_t stage, std::int64_t micro_batches);
// All forwards, for evaluation.
Schedule schedule_forward(std::int64_t stages, std::int64_t stage, std::int64_t micro_batches);

// What a set of schedules (one per stage) does, by playing it: forward costs 1, backward 2,
// messages 0.
struct ScheduleReport {
  std::string problem;  // empty: complete and free of deadlock
  std::vector<std::int64_t>
      peak_in_flight;  // per stage: micro-batches forwarded, not yet backwarded
  double bubble = 0;   // idle share of the busiest stage's span
};
ScheduleReport play_schedules(const std::vector<Schedule>& schedules, std::int64_t micro_batches,
                              bool with_backward);

}  // namespace bev
