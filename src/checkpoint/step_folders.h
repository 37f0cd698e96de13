// The folder that a run saves to: one folder per step, and Megatron's file that names the last one.
//
//   DIR/latest_checkpointed_iteration.txt          "100"
//   DIR/iter_0000100/manifest.json, shard_00000.safetensors, ...
//   DIR/iter_0000110.saving-5f3c/...               a save under way, or one that was cut short
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/storage.h"
#include "comm/group.h"

namespace bev {

inline constexpr char kStepPrefix[] = "iter_";
inline constexpr char kTrackerName[] = "latest_checkpointed_iteration.txt";

// "iter_0000100" and its number; absent for other names.
std::optional<std::int64_t> parse_step(std::string_view name);
std::string step_folder(const std::string& folder, std::int64_t iteration);
// Where the step is written until it is complete; `run` tells apart those who may write there.
std::string saving_folder(const std::string& folder, std::int64_t iteration,
                          const std::string& run);

// A name that tells this run from others, the same on all ranks.
std::string name_run(Group& world);

// Steps with a manifest, in order. None where there is no such folder.
std::vector<std::int64_t> complete_steps(const std::string& folder);
// What the tracker names; without one the last complete step. Absent where there is neither.
std::optional<std::int64_t> latest_step(const std::string& folder);

// What a user's folder means: a step's own, or that of a run with its latest step, or with the
// given one (-1: none given). Error(kInput) when there is no such step.
std::string find_step_folder(const std::string& folder, std::int64_t iteration);

// Puts a finished saving folder in its place and names it in the tracker, in an order that a crash
// at any instant does not harm.
void publish_step(Storage& storage, const std::string& folder, std::int64_t iteration,
                  const std::string& run);
// Removes what earlier runs left of saves that were cut short.
void remove_unfinished(Storage& storage, const std::string& folder);

// Which steps stay beside the one just saved.
struct Retention {
  std::int64_t interval = 0;     // multiples of it; 0: all
  std::int64_t most_recent = 0;  // so many of the last; 0: as the interval says
};
std::vector<std::int64_t> steps_to_remove(std::vector<std::int64_t> steps, std::int64_t saved,
                                          const Retention& retention);
void remove_step(Storage& storage, const std::string& folder, std::int64_t iteration);

}  // namespace bev
