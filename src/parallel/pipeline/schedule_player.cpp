#include "parallel/pipeline/schedule_player.h"

#include <algorithm>
#include <deque>

#include "base/text.h"

namespace bev {

namespace {

// The actions of a stage for one micro-batch, in order.
Schedule expected_actions(const PipelineShape& shape, std::int64_t stage, std::int64_t micro_batch,
                          bool with_backward, bool split) {
  using K = ActionKind;
  bool before = shape.crosses(stage - 1), after = shape.crosses(stage);
  Schedule list;
  auto add = [&](bool wanted, K kind) {
    if (wanted) list.push_back({kind, micro_batch, shape.place_of(stage).chunk});
  };
  add(before, K::kReceiveForward);
  add(true, K::kForward);
  add(after, K::kSendForward);
  add(with_backward && after, K::kReceiveBackward);
  add(with_backward, split ? K::kBackwardInput : K::kBackward);
  add(with_backward && before, K::kSendBackward);
  add(with_backward && split, K::kBackwardWeight);
  return list;
}

std::string wrong_actions(const Schedule& list, const Schedule& expected, const std::string& who) {
  for (int kind = 0; kind < kActionKindCount; ++kind) {
    auto same = [&](const Action& action) { return static_cast<int>(action.kind) == kind; };
    auto times = std::ranges::count_if(list, same);
    if (times != std::ranges::count_if(expected, same)) {
      return concat(who, " has ", times, " times ", name_of(static_cast<ActionKind>(kind)));
    }
  }
  auto wrong = std::mismatch(list.begin(), list.end(), expected.begin());
  if (wrong.first == list.end()) return "";
  return concat(who, " does ", name_of(wrong.first->kind), " before ", name_of(wrong.second->kind));
}

std::string find_incomplete(const PipelineShape& shape, const std::vector<Schedule>& schedules,
                            std::int64_t micro_batches, bool with_backward) {
  if (static_cast<std::int64_t>(schedules.size()) != shape.ranks) {
    return concat(schedules.size(), " schedules for ", shape.ranks, " ranks");
  }
  for (std::int64_t rank = 0; rank < shape.ranks; ++rank) {
    std::vector<Schedule> parts(static_cast<std::size_t>(micro_batches * shape.chunks));
    for (const Action& action : schedules[static_cast<std::size_t>(rank)]) {
      if (action.micro_batch < 0 || action.micro_batch >= micro_batches) {
        return concat("rank ", rank, ": no micro-batch ", action.micro_batch);
      }
      if (action.chunk < 0 || action.chunk >= shape.chunks) {
        return concat("rank ", rank, ": no chunk ", action.chunk);
      }
      parts[static_cast<std::size_t>(action.chunk * micro_batches + action.micro_batch)].push_back(
          action);
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::int64_t chunk = static_cast<std::int64_t>(i) / micro_batches;
      std::int64_t micro_batch = static_cast<std::int64_t>(i) % micro_batches;
      std::int64_t stage = shape.stage_at(rank, chunk);
      bool split = std::ranges::any_of(
          parts[i], [](const Action& action) { return action.kind == ActionKind::kBackwardInput; });
      std::string problem =
          wrong_actions(parts[i], expected_actions(shape, stage, micro_batch, with_backward, split),
                        concat("stage ", stage, ": micro-batch ", micro_batch));
      if (!problem.empty()) return problem;
    }
  }
  return "";
}

class Player {
 public:
  Player(const PipelineShape& shape, const std::vector<Schedule>& schedules,
         std::int64_t micro_batches, bool with_backward, const ActionCosts& costs)
      : shape_(shape),
        schedules_(schedules),
        with_backward_(with_backward),
        costs_(costs),
        ranks_(schedules.size()),
        forward_mail_(static_cast<std::size_t>(shape.stages())),
        backward_mail_(static_cast<std::size_t>(shape.stages())),
        done_(static_cast<std::size_t>(shape.stages()),
              std::vector<Done>(static_cast<std::size_t>(micro_batches))) {}

  void play() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        while (advance(rank)) moved = true;
      }
    }
    for (std::size_t rank = 0; rank < ranks_.size() && problem_.empty(); ++rank) {
      std::size_t at = ranks_[rank].next;
      if (at == schedules_[rank].size()) continue;
      const Action& action = schedules_[rank][at];
      problem_ = concat("deadlock: rank ", rank, " waits to ", name_of(action.kind),
                        " micro-batch ", action.micro_batch, " on stage ",
                        shape_.stage_at(static_cast<std::int64_t>(rank), action.chunk));
    }
  }

  ScheduleReport report() {
    ScheduleReport report;
    report.problem = problem_;
    double busy = 0;
    for (Rank& rank : ranks_) {
      report.peak_in_flight.push_back(rank.peak);
      report.span = std::max(report.span, rank.clock);
      busy = std::max(busy, rank.busy);
      report.timeline.push_back(std::move(rank.timeline));
    }
    report.bubble = report.span > 0 ? (report.span - busy) / report.span : 0;
    return report;
  }

 private:
  struct Rank {
    std::size_t next = 0;
    double clock = 0, busy = 0;
    std::int64_t in_flight = 0, peak = 0;
    std::vector<TimedAction> timeline;
  };
  struct Done {
    bool forward = false, backward = false;
  };
  // Transports do not match micro-batches: a receive takes the message that was sent first.
  struct Message {
    std::int64_t micro_batch;
    double time;
  };
  using Mail = std::deque<Message>;

  // Runs one action of a rank if it can run now.
  bool advance(std::size_t at) {
    Rank& rank = ranks_[at];
    if (rank.next == schedules_[at].size()) return false;
    const Action& action = schedules_[at][rank.next];
    auto stage =
        static_cast<std::size_t>(shape_.stage_at(static_cast<std::int64_t>(at), action.chunk));
    if (computes(action.kind)) {
      if (!neighbour_done(static_cast<std::int64_t>(stage), action)) return false;
      compute(rank, stage, action);
    } else if (action.kind == ActionKind::kSendForward) {
      forward_mail_[stage + 1].push_back({action.micro_batch, rank.clock});
    } else if (action.kind == ActionKind::kSendBackward) {
      backward_mail_[stage - 1].push_back({action.micro_batch, rank.clock});
    } else {
      bool forward = action.kind == ActionKind::kReceiveForward;
      Mail& box = forward ? forward_mail_[stage] : backward_mail_[stage];
      if (!receive(box, rank, stage, action.micro_batch)) return false;
    }
    ++rank.next;
    return true;
  }

  // A neighbouring stage on the same rank passes its result without a message.
  bool neighbour_done(std::int64_t stage, const Action& action) const {
    auto done = [&](std::int64_t number) {
      return done_[static_cast<std::size_t>(number)][static_cast<std::size_t>(action.micro_batch)];
    };
    if (action.kind == ActionKind::kForward) {
      return stage == 0 || shape_.crosses(stage - 1) || done(stage - 1).forward;
    }
    if (action.kind == ActionKind::kBackwardWeight || stage + 1 == shape_.stages()) return true;
    return shape_.crosses(stage) || done(stage + 1).backward;
  }

  bool receive(Mail& box, Rank& rank, std::size_t stage, std::int64_t micro_batch) {
    if (box.empty()) return false;
    Message message = box.front();
    box.pop_front();
    if (message.micro_batch != micro_batch && problem_.empty()) {
      problem_ = concat("stage ", stage, " waits for micro-batch ", micro_batch, ", but ",
                        message.micro_batch, " was sent first");
    }
    rank.clock = std::max(rank.clock, message.time);
    return true;
  }

  double cost_of(ActionKind kind) const {
    switch (kind) {
      case ActionKind::kForward:
        return costs_.forward;
      case ActionKind::kBackward:
        return costs_.backward_input + costs_.backward_weight;
      case ActionKind::kBackwardInput:
        return costs_.backward_input;
      case ActionKind::kBackwardWeight:
        return costs_.backward_weight;
      default:
        return 0;
    }
  }

  void compute(Rank& rank, std::size_t stage, const Action& action) {
    double cost = cost_of(action.kind);
    rank.timeline.push_back({action, rank.clock, rank.clock + cost});
    rank.clock += cost;
    rank.busy += cost;
    Done& done = done_[stage][static_cast<std::size_t>(action.micro_batch)];
    if (action.kind == ActionKind::kForward) {
      done.forward = true;
      if (with_backward_) rank.peak = std::max(rank.peak, ++rank.in_flight);
      return;
    }
    done.backward = true;
    if (action.kind != ActionKind::kBackwardInput) --rank.in_flight;
  }

  const PipelineShape& shape_;
  const std::vector<Schedule>& schedules_;
  bool with_backward_;
  ActionCosts costs_;
  std::vector<Rank> ranks_;
  std::vector<Mail> forward_mail_, backward_mail_;  // in transit to each stage
  std::vector<std::vector<Done>> done_;             // by stage and micro-batch
  std::string problem_;
};

}  // namespace

ScheduleReport play_schedules(const PipelineShape& shape, const std::vector<Schedule>& schedules,
                              std::int64_t micro_batches, bool with_backward,
                              const ActionCosts& costs) {
  std::string incomplete = find_incomplete(shape, schedules, micro_batches, with_backward);
  if (!incomplete.empty()) {
    ScheduleReport report;
    report.problem = std::move(incomplete);
    return report;
  }
  Player player(shape, schedules, micro_batches, with_backward, costs);
  player.play();
  return player.report();
}

}  // namespace bev
