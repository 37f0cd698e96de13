#include "parallel/schedule.h"

#include <algorithm>
#include <array>
#include <deque>

#include "base/text.h"

namespace bev {

namespace {
void add_forward(Schedule& list, std::int64_t stages, std::int64_t stage,
                 std::int64_t micro_batch) {
  if (stage > 0) list.push_back({ActionKind::kReceiveForward, micro_batch});
  list.push_back({ActionKind::kForward, micro_batch});
  if (stage + 1 < stages) list.push_back({ActionKind::kSendForward, micro_batch});
}

void add_backward(Schedule& list, std::int64_t stages, std::int64_t stage,
                  std::int64_t micro_batch) {
  if (stage + 1 < stages) list.push_back({ActionKind::kReceiveBackward, micro_batch});
  list.push_back({ActionKind::kBackward, micro_batch});
  if (stage > 0) list.push_back({ActionKind::kSendBackward, micro_batch});
}
}  // namespace

const char* name_of(ActionKind kind) {
  constexpr std::array<const char*, 6> kNames = {"receive forward",  "forward",  "send forward",
                                                 "receive backward", "backward", "send backward"};
  return kNames[static_cast<std::size_t>(kind)];
}

Schedule schedule_1f1b(std::int64_t stages, std::int64_t stage, std::int64_t micro_batches) {
  Schedule list;
  std::int64_t warmup = std::min(stages - stage - 1, micro_batches);
  for (std::int64_t i = 0; i < warmup; ++i) add_forward(list, stages, stage, i);
  for (std::int64_t i = warmup; i < micro_batches; ++i) {
    add_forward(list, stages, stage, i);
    add_backward(list, stages, stage, i - warmup);
  }
  for (std::int64_t i = micro_batches - warmup; i < micro_batches; ++i)
    add_backward(list, stages, stage, i);
  return list;
}

Schedule schedule_forward(std::int64_t stages, std::int64_t stage, std::int64_t micro_batches) {
  Schedule list;
  for (std::int64_t i = 0; i < micro_batches; ++i) add_forward(list, stages, stage, i);
  return list;
}

namespace {

struct Player {
  const std::vector<Schedule>& schedules;
  std::vector<std::size_t> next;
  std::vector<double> clock;
  std::vector<double> busy;
  std::vector<std::int64_t> in_flight, peak;
  // Messages on their way to a stage, in the order sent: transports know no micro-batches.
  using Mail = std::deque<std::pair<std::int64_t, double>>;  // micro-batch, time
  std::vector<Mail> forward_sent, backward_sent;
  std::string mixed_up;

  explicit Player(const std::vector<Schedule>& lists)
      : schedules(lists),
        next(lists.size(), 0),
        clock(lists.size(), 0),
        busy(lists.size(), 0),
        in_flight(lists.size(), 0),
        peak(lists.size(), 0),
        forward_sent(lists.size()),
        backward_sent(lists.size()) {}

  bool receive(Mail& box, std::size_t stage, std::int64_t micro_batch) {
    if (box.empty()) return false;
    auto [came, time] = box.front();
    if (came != micro_batch && mixed_up.empty()) {
      mixed_up = concat("stage ", stage, " waits for micro-batch ", micro_batch, ", but ", came,
                        " was sent first");
    }
    clock[stage] = std::max(clock[stage], time);
    box.pop_front();
    return true;
  }
  void work(std::size_t stage, double cost, int change) {
    clock[stage] += cost;
    busy[stage] += cost;
    in_flight[stage] += change;
    peak[stage] = std::max(peak[stage], in_flight[stage]);
  }

  // One action of a stage, if it can run now.
  bool advance(std::size_t stage, bool with_backward) {
    if (next[stage] == schedules[stage].size()) return false;
    const Action& action = schedules[stage][next[stage]];
    switch (action.kind) {
      case ActionKind::kReceiveForward:
        if (!receive(forward_sent[stage], stage, action.micro_batch)) return false;
        break;
      case ActionKind::kReceiveBackward:
        if (!receive(backward_sent[stage], stage, action.micro_batch)) return false;
        break;
      case ActionKind::kForward:
        work(stage, 1, with_backward ? 1 : 0);
        break;
      case ActionKind::kBackward:
        work(stage, 2, -1);
        break;
      case ActionKind::kSendForward:
        forward_sent[stage + 1].emplace_back(action.micro_batch, clock[stage]);
        break;
      case ActionKind::kSendBackward:
        backward_sent[stage - 1].emplace_back(action.micro_batch, clock[stage]);
        break;
    }
    ++next[stage];
    return true;
  }
};

// What a stage does with one micro-batch, in this order.
Schedule expected_actions(std::size_t stages, std::size_t stage, std::int64_t micro_batch,
                          bool with_backward) {
  Schedule list;
  auto total = static_cast<std::int64_t>(stages), at = static_cast<std::int64_t>(stage);
  add_forward(list, total, at, micro_batch);
  if (with_backward) add_backward(list, total, at, micro_batch);
  return list;
}

std::string find_incomplete(const std::vector<Schedule>& schedules, std::int64_t micro_batches,
                            bool with_backward) {
  for (std::size_t stage = 0; stage < schedules.size(); ++stage) {
    std::vector<Schedule> by_batch(static_cast<std::size_t>(micro_batches));
    for (const Action& action : schedules[stage]) {
      if (action.micro_batch < 0 || action.micro_batch >= micro_batches) {
        return concat("stage ", stage, ": no micro-batch ", action.micro_batch);
      }
      by_batch[static_cast<std::size_t>(action.micro_batch)].push_back(action);
    }
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      const Schedule& list = by_batch[static_cast<std::size_t>(i)];
      Schedule expected = expected_actions(schedules.size(), stage, i, with_backward);
      for (int kind = 0; kind < 6; ++kind) {
        Action action{static_cast<ActionKind>(kind), i};
        auto times = std::count(list.begin(), list.end(), action);
        if (times != std::count(expected.begin(), expected.end(), action)) {
          return concat("stage ", stage, ": micro-batch ", i, " has ", times, " times ",
                        name_of(action.kind));
        }
      }
      auto wrong = std::mismatch(list.begin(), list.end(), expected.begin());
      if (wrong.first != list.end()) {
        return concat("stage ", stage, ": micro-batch ", i, " does ", name_of(wrong.first->kind),
                      " before ", name_of(wrong.second->kind));
      }
    }
  }
  return "";
}

}  // namespace

ScheduleReport play_schedules(const std::vector<Schedule>& schedules, std::int64_t micro_batches,
                              bool with_backward) {
  ScheduleReport report;
  report.problem = find_incomplete(schedules, micro_batches, with_backward);
  if (!report.problem.empty()) return report;
  Player player(schedules);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t stage = 0; stage < schedules.size(); ++stage) {
      while (player.advance(stage, with_backward)) moved = true;
    }
  }
  for (std::size_t stage = 0; stage < schedules.size(); ++stage) {
    if (player.next[stage] != schedules[stage].size()) {
      report.problem = concat("deadlock: stage ", stage, " waits in action ", player.next[stage]);
    }
  }
  if (!player.mixed_up.empty()) report.problem = player.mixed_up;
  report.peak_in_flight = player.peak;
  double span = *std::max_element(player.clock.begin(), player.clock.end());
  double busy = *std::max_element(player.busy.begin(), player.busy.end());
  report.bubble = span > 0 ? (span - busy) / span : 0;
  return report;
}

}  // namespace bev
