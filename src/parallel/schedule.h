// Pipeline schedules are data: a generator returns each rank's list of actions, one executor runs
// any list, and lists are checked without tensors (parallel/schedule_player.h).
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
  kReceiveForward,  // activations from the stage before
  kForward,
  kSendForward,
  kReceiveBackward,  // gradients from the stage after
  kBackward,         // gradients of the input and of the weights
  kBackwardInput,    // of the input only; the work for the weights is kept
  kSendBackward,
  kBackwardWeight,  // the work that was kept
};
inline constexpr int kActionKindCount = 8;
const char* name_of(ActionKind kind);  // a literal
constexpr bool computes(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kBackward ||
         kind == ActionKind::kBackwardInput || kind == ActionKind::kBackwardWeight;
}

struct Action {
  ActionKind kind;
  std::int64_t micro_batch = 0;
  std::int64_t chunk = 0;  // which of the rank's stages
  bool operator==(const Action&) const = default;
};

using Schedule = std::vector<Action>;

enum class StagePlacement : std::uint8_t { kLoop, kV };

struct PipelineShape;
// Each rank's order of computations of one iteration; make_schedules() adds the messages.
using OrderGenerator = std::vector<Schedule> (*)(const PipelineShape& shape,
                                                 std::int64_t micro_batches);

// What the program knows about a schedule: a row of schedules.def.
struct ScheduleTraits {
  PipelineSchedule schedule;
  OrderGenerator order;
  std::string_view name;         // value of --pipeline-schedule, and its name in drawings
  std::string_view layout_word;  // its word in `verify --layouts`
  StagePlacement placement = StagePlacement::kLoop;
  std::int64_t chunks = 0;  // stages on each rank; 0: any number, one unless told otherwise
  // The problem where a rank has another number of stages: what the schedule has, what to give.
  std::string_view chunks_rule = {}, chunks_cure = {};
  // With several stages on a rank it is interleaved: a stage takes micro-batches in groups.
  bool grouped = false;
  bool pairs = false;  // a forward and a backward may run together (runs_together())
  // Once the pipeline is full, every group of micro-batches comes to the same peak of memory as the
  // group before it, so that the memory plan plays a few groups only.
  bool steady = false;

  std::int64_t default_chunks() const { return chunks > 0 ? chunks : 1; }
};

std::span<const ScheduleTraits> schedule_traits();  // in the order of the rows
const ScheduleTraits& traits_of(PipelineSchedule schedule);
// Names of the schedules that have this trait: "1f1b or zb-h1".
std::string names_of_schedules(bool ScheduleTraits::*trait);

struct StagePlace {
  std::int64_t rank = 0, chunk = 0;
  bool operator==(const StagePlace&) const = default;
};

// How the stages of a model lie on the pipeline's ranks, and in what order they work. With three
// ranks and two chunks, by stage number:
//
//   loop      rank 0: 0 3    rank 1: 1 4    rank 2: 2 5
//   V         rank 0: 0 5    rank 1: 1 4    rank 2: 2 3
struct PipelineShape {
  std::int64_t ranks = 1;
  std::int64_t chunks = 1;      // stages on each rank
  PipelineSchedule schedule{};  // the default
  std::int64_t group_size = 0;  // interleaved: micro-batches a stage takes in a row; 0: ranks
  // 1F1B: a forward and a backward run together (runs_together()), so that messages leave when both
  // are done, and more micro-batches are under way.
  bool paired = false;

  std::int64_t stages() const { return ranks * chunks; }
  bool interleaved() const { return chunks > 1 && traits_of(schedule).grouped; }
  StagePlace place_of(std::int64_t stage) const;
  std::int64_t stage_at(std::int64_t rank, std::int64_t chunk) const;
  // Whether stages `stage` and `stage` + 1 exist on different ranks, so that messages pass.
  bool crosses(std::int64_t stage) const;
  // The group size in use: enlarged where the last group would have too few micro-batches to keep
  // all ranks going, which with fewer than `ranks` ends in a deadlock.
  std::int64_t group_for(std::int64_t micro_batches) const;
};

// Whether the computation at `at` is a forward that may run interleaved with the one right behind
// it: the backward of another micro-batch, which does not need it.
bool runs_together(const Schedule& schedule, std::size_t at);

// The generators of the rows, each described where it is defined.
#define BEV_SCHEDULE(value, generator, ...) \
  std::vector<Schedule> generator(const PipelineShape& shape, std::int64_t micro_batches);
#include "parallel/schedules.def"

// The lists of all ranks for one iteration. 1F1B and interleaved are Megatron's; ZB-H1 and ZB-V
// (Qi et al. 2023, 2024) hold no more activations than 1F1B does on its first rank.
std::vector<Schedule> make_schedules(const PipelineShape& shape, std::int64_t micro_batches);
// Lists of one's own instead.
class ScheduleMaker {
 public:
  virtual ~ScheduleMaker() = default;
  // As make_schedules().
  virtual std::vector<Schedule> make(const PipelineShape& shape,
                                     std::int64_t micro_batches) const = 0;
};

// All forwards, for evaluation.
std::vector<Schedule> make_forward_schedules(const PipelineShape& shape,
                                             std::int64_t micro_batches);

}  // namespace bev
