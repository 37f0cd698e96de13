// Pipeline schedules as data: a generator returns each rank's list of actions, one executor runs
// any list, and parallel/pipeline/schedule_player.h checks lists without tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/config.h"

namespace bev {

enum class ActionKind : std::uint8_t {
  kReceiveForward,  // activations from the previous stage
  kForward,
  kSendForward,
  kReceiveBackward,  // gradients from the next stage
  kBackward,         // dgrad and wgrad
  kBackwardInput,    // dgrad only; wgrad is deferred to kBackwardWeight
  kSendBackward,
  kBackwardWeight,  // the deferred wgrad
};
inline constexpr int kActionKindCount = 8;
const char* name_of(ActionKind kind);  // returns a literal
constexpr bool computes(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kBackward ||
         kind == ActionKind::kBackwardInput || kind == ActionKind::kBackwardWeight;
}

struct Action {
  ActionKind kind;
  std::int64_t micro_batch = 0;
  std::int64_t chunk = 0;  // index of the stage on the rank
  bool operator==(const Action&) const = default;
};

using Schedule = std::vector<Action>;

enum class StagePlacement : std::uint8_t { kLoop, kV };

struct PipelineShape;
// Returns each rank's order of compute actions of one iteration; make_schedules() inserts the
// messages.
using OrderGenerator = std::vector<Schedule> (*)(const PipelineShape& shape,
                                                 std::int64_t micro_batches);

// The traits of a schedule: a row of schedules.def.
struct ScheduleTraits {
  PipelineSchedule schedule;
  OrderGenerator order;
  std::string_view name;         // value of --pipeline-schedule, and the name in drawings
  std::string_view layout_word;  // the word for it in `verify --layouts`
  StagePlacement placement = StagePlacement::kLoop;
  std::int64_t chunks = 0;  // stages per rank; 0: any number, by default one
  // The error if a rank has another number of stages: what the schedule has, and what to set.
  std::string_view chunks_rule = {}, chunks_cure = {};
  // With several stages per rank the schedule is interleaved: a stage takes micro-batches in
  // groups.
  bool grouped = false;
  bool pairs = false;  // a forward and a backward may run together (runs_together())
  // In the steady state every group of micro-batches reaches the same memory peak, so that the
  // memory plan simulates a few groups only.
  bool steady = false;

  std::int64_t default_chunks() const { return chunks > 0 ? chunks : 1; }
};

std::span<const ScheduleTraits> schedule_traits();  // in the order of the rows
const ScheduleTraits& traits_of(PipelineSchedule schedule);
// Names of the schedules that have this trait, such as "1f1b or zb-h1".
std::string names_of_schedules(bool ScheduleTraits::*trait);

struct StagePlace {
  std::int64_t rank = 0, chunk = 0;
  bool operator==(const StagePlace&) const = default;
};

// Placement of the model's stages on pipeline ranks, and the schedule. With three ranks and two
// chunks, by stage index:
//
//   loop      rank 0: 0 3    rank 1: 1 4    rank 2: 2 5
//   V         rank 0: 0 5    rank 1: 1 4    rank 2: 2 3
struct PipelineShape {
  std::int64_t ranks = 1;
  std::int64_t chunks = 1;      // stages per rank
  PipelineSchedule schedule{};  // the first row
  std::int64_t group_size = 0;  // interleaved: consecutive micro-batches per stage; 0: `ranks`
  // 1F1B: a forward and a backward run together (runs_together()), so that messages are sent when
  // both are done, and more micro-batches are in flight.
  bool paired = false;

  std::int64_t stages() const { return ranks * chunks; }
  bool interleaved() const { return chunks > 1 && traits_of(schedule).grouped; }
  StagePlace place_of(std::int64_t stage) const;
  std::int64_t stage_at(std::int64_t rank, std::int64_t chunk) const;
  // Whether `stage` and `stage` + 1 are on different ranks, so that p2p messages are needed.
  bool crosses(std::int64_t stage) const;
  // The effective group size. It is enlarged if the last group would have too few micro-batches to
  // keep all ranks busy; with fewer than `ranks` the schedule would deadlock.
  std::int64_t group_for(std::int64_t micro_batches) const;
};

// Whether the compute action at `at` is a forward that may run interleaved with the next one: the
// backward of another micro-batch, which does not depend on it.
bool runs_together(const Schedule& schedule, std::size_t at);

// The generators of the rows, each described at its definition.
#define BEV_SCHEDULE(value, generator, ...) \
  std::vector<Schedule> generator(const PipelineShape& shape, std::int64_t micro_batches);
#include "parallel/pipeline/schedules.def"

// The schedules of all ranks for one iteration. 1F1B and interleaved 1F1B are Megatron's; the zero
// bubble schedules ZB-H1 and ZB-V (Qi et al. 2023, 2024) hold no more activations than 1F1B on its
// first rank.
std::vector<Schedule> make_schedules(const PipelineShape& shape, std::int64_t micro_batches);
// Custom schedules instead of those of schedules.def.
class ScheduleMaker {
 public:
  virtual ~ScheduleMaker() = default;
  // Contract of make_schedules().
  virtual std::vector<Schedule> make(const PipelineShape& shape,
                                     std::int64_t micro_batches) const = 0;
};

// Forwards only, for evaluation.
std::vector<Schedule> make_forward_schedules(const PipelineShape& shape,
                                             std::int64_t micro_batches);

}  // namespace bev
