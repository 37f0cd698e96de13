#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace bev {

const char* name_of(ActionKind kind) {
  constexpr std::array<const char*, kActionKindCount> kNames = {
      "receive forward", "forward",        "send forward",  "receive backward",
      "backward",        "backward input", "send backward", "backward weight"};
  return kNames[static_cast<std::size_t>(kind)];
}

namespace {
constexpr auto kTraits = std::to_array<ScheduleTraits>({
#define BEV_SCHEDULE(value, generator, ...) \
  {.schedule = PipelineSchedule::value, .order = generator, __VA_ARGS__},
#include "parallel/pipeline/schedules.def"
});
}  // namespace

std::span<const ScheduleTraits> schedule_traits() { return kTraits; }

const ScheduleTraits& traits_of(PipelineSchedule schedule) {
  return kTraits[static_cast<std::size_t>(schedule)];
}

std::string names_of_schedules(bool ScheduleTraits::*trait) {
  std::vector<std::string> names;
  for (const ScheduleTraits& traits : kTraits) {
    if (traits.*trait) names.emplace_back(traits.name);
  }
  return join(names, " or ");
}

StagePlace PipelineShape::place_of(std::int64_t stage) const {
  bool back = traits_of(schedule).placement == StagePlacement::kV && stage >= ranks;
  return back ? StagePlace{2 * ranks - 1 - stage, 1} : StagePlace{stage % ranks, stage / ranks};
}

std::int64_t PipelineShape::stage_at(std::int64_t rank, std::int64_t chunk) const {
  bool back = traits_of(schedule).placement == StagePlacement::kV && chunk == 1;
  return back ? 2 * ranks - 1 - rank : chunk * ranks + rank;
}

bool PipelineShape::crosses(std::int64_t stage) const {
  if (stage < 0 || stage + 1 >= stages()) return false;
  return place_of(stage).rank != place_of(stage + 1).rank;
}

std::int64_t PipelineShape::group_for(std::int64_t micro_batches) const {
  std::int64_t group = std::max(group_size, ranks);
  while (group < micro_batches && micro_batches % group != 0 && micro_batches % group < ranks) {
    ++group;
  }
  return group;
}

bool runs_together(const Schedule& schedule, std::size_t at) {
  if (at + 1 >= schedule.size() || schedule[at].kind != ActionKind::kForward) return false;
  const Action& next = schedule[at + 1];
  return next.kind == ActionKind::kBackward && next.micro_batch != schedule[at].micro_batch;
}

namespace {

// Interleaved order: groups of micro-batches, in each group the chunks, in each chunk the
// micro-batches. The last group may be shorter.
Schedule forward_order(const PipelineShape& shape, std::int64_t micro_batches) {
  std::int64_t group = shape.group_for(micro_batches);
  Schedule order;
  for (std::int64_t first = 0; first < micro_batches; first += group) {
    std::int64_t end = std::min(first + group, micro_batches);
    for (std::int64_t chunk = 0; chunk < shape.chunks; ++chunk) {
      for (std::int64_t i = first; i < end; ++i) order.push_back({ActionKind::kForward, i, chunk});
    }
  }
  return order;
}

// Warmup: forwards before the first backward. A pair sends its results only when both halves are
// done, in either direction, so twice as many forwards are needed to keep later ranks busy
// (interleaving needs them anyway), and one more for the forward of the first pair.
std::int64_t warmup_forwards(const PipelineShape& shape, std::int64_t rank,
                             std::int64_t micro_batches) {
  std::int64_t later = shape.ranks - rank - 1;
  std::int64_t of_chunks = (shape.chunks - 1) * shape.group_for(micro_batches);
  if (shape.paired) return 2 * later + of_chunks + 1;
  return shape.chunks == 1 ? later : 2 * later + of_chunks;
}

// 1F1B: warmup forwards, then one forward and one backward in turn (steady state), then the
// remaining backwards (cooldown). Backwards take the chunks in the opposite order.
Schedule alternating_order(const PipelineShape& shape, std::int64_t rank,
                           std::int64_t micro_batches) {
  Schedule forwards = forward_order(shape, micro_batches);
  std::size_t total = forwards.size();
  std::int64_t warmup = warmup_forwards(shape, rank, micro_batches);
  std::size_t ahead = std::min(static_cast<std::size_t>(warmup), total);
  Schedule order;
  for (std::size_t i = 0; i < total + ahead; ++i) {
    if (i < total) order.push_back(forwards[i]);
    if (i < ahead) continue;
    const Action& done = forwards[i - ahead];
    order.push_back({ActionKind::kBackward, done.micro_batch, shape.chunks - 1 - done.chunk});
  }
  return order;
}

// Inserts receives before and sends after each compute action; with `pairs`, two actions that run
// together count as one.
Schedule with_messages(const PipelineShape& shape, std::int64_t rank, const Schedule& order,
                       bool pairs) {
  Schedule list;
  auto add_receive = [&](const Action& action) {
    std::int64_t stage = shape.stage_at(rank, action.chunk);
    bool forward = action.kind == ActionKind::kForward;
    if (action.kind == ActionKind::kBackwardWeight) return;
    if (!shape.crosses(forward ? stage - 1 : stage)) return;
    ActionKind kind = forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward;
    list.push_back({kind, action.micro_batch, action.chunk});
  };
  auto add_send = [&](const Action& action) {
    std::int64_t stage = shape.stage_at(rank, action.chunk);
    bool forward = action.kind == ActionKind::kForward;
    if (action.kind == ActionKind::kBackwardWeight) return;
    if (!shape.crosses(forward ? stage : stage - 1)) return;
    ActionKind kind = forward ? ActionKind::kSendForward : ActionKind::kSendBackward;
    list.push_back({kind, action.micro_batch, action.chunk});
  };
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    end = begin + (pairs && runs_together(order, begin) ? 2 : 1);
    for (std::size_t i = begin; i < end; ++i) add_receive(order[i]);
    for (std::size_t i = begin; i < end; ++i) list.push_back(order[i]);
    for (std::size_t i = begin; i < end; ++i) add_send(order[i]);
  }
  return list;
}

}  // namespace

// 1F1B, or interleaved 1F1B if a rank has several stages.
std::vector<Schedule> one_forward_one_backward(const PipelineShape& shape,
                                               std::int64_t micro_batches) {
  std::vector<Schedule> orders;
  for (std::int64_t rank = 0; rank < shape.ranks; ++rank) {
    orders.push_back(alternating_order(shape, rank, micro_batches));
  }
  return orders;
}

std::vector<Schedule> make_schedules(const PipelineShape& shape, std::int64_t micro_batches) {
  std::vector<Schedule> lists = traits_of(shape.schedule).order(shape, micro_batches);
  for (std::int64_t rank = 0; rank < shape.ranks; ++rank) {
    Schedule& list = lists[static_cast<std::size_t>(rank)];
    // If all forwards are warmup, a later rank may need the last one before it can send the first
    // gradient.
    bool pairs =
        shape.paired && warmup_forwards(shape, rank, micro_batches) < micro_batches * shape.chunks;
    list = with_messages(shape, rank, list, pairs);
  }
  return lists;
}

std::vector<Schedule> make_forward_schedules(const PipelineShape& shape,
                                             std::int64_t micro_batches) {
  Schedule order = forward_order(shape, micro_batches);
  std::vector<Schedule> lists;
  for (std::int64_t rank = 0; rank < shape.ranks; ++rank) {
    lists.push_back(with_messages(shape, rank, order, false));
  }
  return lists;
}

}  // namespace bev
