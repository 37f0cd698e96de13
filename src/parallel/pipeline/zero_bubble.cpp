// Zero bubble pipeline schedules (Qi et al.): the backward is split, so that dgrad is sent to the
// previous stage at once, while wgrad fills what would be the pipeline bubble.
#include <algorithm>
#include <array>
#include <optional>

#include "parallel/pipeline/schedule.h"

namespace bev {

namespace {

Schedule h1_order(std::int64_t ranks, std::int64_t rank, std::int64_t micro_batches) {
  Schedule order;
  std::int64_t warmup = std::min(ranks - rank - 1, micro_batches);
  for (std::int64_t i = 0; i < warmup; ++i) order.push_back({ActionKind::kForward, i});
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    if (warmup + i < micro_batches) order.push_back({ActionKind::kForward, warmup + i});
    order.push_back({ActionKind::kBackwardInput, i});
    if (i >= rank) order.push_back({ActionKind::kBackwardWeight, i - rank});
  }
  std::int64_t left = std::max<std::int64_t>(micro_batches - rank, 0);
  for (std::int64_t i = left; i < micro_batches; ++i) {
    order.push_back({ActionKind::kBackwardWeight, i});
  }
  return order;
}

}  // namespace

// ZB-H1: the order of 1F1B in which rank r delays wgrad by r micro-batches, so that every rank has
// as many micro-batches in flight as the first. The bubble with M >= P micro-batches is (P - 1)(F +
// B - W).
std::vector<Schedule> zero_bubble_h1(const PipelineShape& shape, std::int64_t micro_batches) {
  std::vector<Schedule> orders;
  for (std::int64_t rank = 0; rank < shape.ranks; ++rank) {
    orders.push_back(h1_order(shape.ranks, rank, micro_batches));
  }
  return orders;
}

namespace {

constexpr std::int64_t kChunks = 2;

// Simulates the V schedule in units of time, in which each rank runs one compute action or idles.
class VPlayer {
 public:
  // `late_first`: of two backwards that are ready, the backward of the later stage runs first.
  VPlayer(const PipelineShape& shape, std::int64_t micro_batches, bool late_first)
      : shape_(shape),
        micro_batches_(micro_batches),
        late_first_(late_first),
        ranks_(static_cast<std::size_t>(shape.ranks)),
        stages_(static_cast<std::size_t>(shape.stages())) {}

  void play() {
    std::int64_t left = shape_.stages() * micro_batches_ * 3;
    std::vector<std::optional<Action>> chosen(ranks_.size());
    for (; left > 0; ++time_) {
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        chosen[rank] = choose(static_cast<std::int64_t>(rank));
      }
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (!chosen[rank]) continue;
        apply(static_cast<std::int64_t>(rank), *chosen[rank]);
        --left;
      }
    }
  }
  std::int64_t time() const { return time_; }
  std::vector<Schedule> orders() const {
    std::vector<Schedule> lists;
    for (const Rank& rank : ranks_) lists.push_back(rank.order);
    return lists;
  }

 private:
  struct Stage {
    std::int64_t forwards = 0, backwards = 0, weights = 0;  // micro-batches done
  };
  struct Rank {
    std::int64_t in_flight = 0;
    Schedule order;
  };
  const Stage& stage(std::int64_t number) const {
    return stages_[static_cast<std::size_t>(number)];
  }

  // A micro-batch holds memory on both stages of a rank before it frees any, so the first stage
  // leaves room for one on the second; otherwise all ranks could fill up with first stages and
  // deadlock.
  bool forward_ready(std::int64_t number, const Rank& rank, std::int64_t chunk) const {
    std::int64_t next = stage(number).forwards;
    if (next == micro_batches_ || (number > 0 && stage(number - 1).forwards <= next)) return false;
    return rank.in_flight + kChunks - chunk <= kChunks * shape_.ranks;
  }
  bool backward_ready(std::int64_t number) const {
    std::int64_t next = stage(number).backwards;
    bool last = number + 1 == shape_.stages();
    return next < (last ? stage(number).forwards : stage(number + 1).backwards);
  }

  // Backwards unblock other ranks and forwards keep them busy, the later stage before the earlier;
  // wgrad can wait.
  std::optional<Action> choose(std::int64_t at) const {
    const Rank& rank = ranks_[static_cast<std::size_t>(at)];
    std::array<std::int64_t, kChunks> numbers = {shape_.stage_at(at, 0), shape_.stage_at(at, 1)};
    for (std::int64_t chunk : late_first_ ? std::array{1, 0} : std::array{0, 1}) {
      std::int64_t number = numbers[static_cast<std::size_t>(chunk)];
      if (backward_ready(number)) {
        return Action{ActionKind::kBackwardInput, stage(number).backwards, chunk};
      }
    }
    for (std::int64_t chunk : {1, 0}) {
      std::int64_t number = numbers[static_cast<std::size_t>(chunk)];
      if (forward_ready(number, rank, chunk)) {
        return Action{ActionKind::kForward, stage(number).forwards, chunk};
      }
    }
    auto waiting = [&](std::size_t chunk) {
      return stage(numbers[chunk]).backwards - stage(numbers[chunk]).weights;
    };
    std::size_t chunk = waiting(1) > waiting(0) ? 1 : 0;
    if (waiting(chunk) == 0) return std::nullopt;
    return Action{ActionKind::kBackwardWeight, stage(numbers[chunk]).weights,
                  static_cast<std::int64_t>(chunk)};
  }

  void apply(std::int64_t at, const Action& action) {
    Rank& rank = ranks_[static_cast<std::size_t>(at)];
    Stage& done = stages_[static_cast<std::size_t>(shape_.stage_at(at, action.chunk))];
    rank.order.push_back(action);
    if (action.kind == ActionKind::kForward) {
      ++done.forwards;
      ++rank.in_flight;
    } else if (action.kind == ActionKind::kBackwardInput) {
      ++done.backwards;
    } else {
      ++done.weights;
      --rank.in_flight;
    }
  }

  const PipelineShape& shape_;
  std::int64_t micro_batches_;
  bool late_first_;
  std::vector<Rank> ranks_;
  std::vector<Stage> stages_;
  std::int64_t time_ = 0;
};

}  // namespace

// ZB-V: two stages per rank, down the ranks and up again. The schedule is found by simulating
// compute actions of equal length: each rank runs the most urgent one that fits within the memory
// of 1F1B.
std::vector<Schedule> zero_bubble_v(const PipelineShape& shape, std::int64_t micro_batches) {
  // Which of the two is shorter depends on the numbers of ranks and micro-batches.
  VPlayer early(shape, micro_batches, false), late(shape, micro_batches, true);
  early.play();
  late.play();
  return late.time() < early.time() ? late.orders() : early.orders();
}

}  // namespace bev
