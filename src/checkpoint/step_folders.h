// Checkpoint directory layout: one folder per step, and Megatron's tracker file with the last step.
//
//   DIR/latest_checkpointed_iteration.txt          "100"
//   DIR/iter_0000100/manifest.json, shard_00000.safetensors, ...
//   DIR/iter_0000110.saving-5f3c/...               a save in progress, or an interrupted one
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/storage.h"
#include "comm/group.h"

namespace bev {

inline constexpr char kStepPrefix[] = "iter_";
inline constexpr char kTrackerName[] = "latest_checkpointed_iteration.txt";

// Iteration of "iter_0000100"; nullopt for other names.
std::optional<std::int64_t> parse_step(std::string_view name);
std::string step_folder(const std::string& folder, std::int64_t iteration);
// Temporary folder of a step until it is complete; `run` makes it unique among concurrent runs.
std::string saving_folder(const std::string& folder, std::int64_t iteration,
                          const std::string& run);

// Unique name of this run, equal on all ranks.
std::string name_run(Group& world);

// Steps that have a manifest, ascending. Empty if the folder does not exist.
std::vector<std::int64_t> complete_steps(const std::string& folder);
// Step in the tracker; without one, the last complete step. nullopt if there is neither.
std::optional<std::int64_t> latest_step(const std::string& folder);

// Whether a step that can be read lies in the folder: ours, or one of Megatron's.
bool holds_step(const std::string& folder);
// Resolves a user's folder: a step's own folder, or a run's folder with the latest step or the
// given one (-1: latest). Throws Error(kInput) if there is no such step.
std::string find_step_folder(const std::string& folder, std::int64_t iteration);

// Renames a finished saving folder to its final name and updates the tracker, in an order that is
// safe against a crash at any time.
void publish_step(Storage& storage, const std::string& folder, std::int64_t iteration,
                  const std::string& run);
// Removes interrupted saves of earlier runs.
void remove_unfinished(Storage& storage, const std::string& folder);

// Which steps are kept in addition to the one just saved; all of them if all values are 0.
struct Retention {
  std::int64_t interval = 0;     // keep multiples of it; 0: none
  std::int64_t most_recent = 0;  // keep this many of the last ones, including the one just saved
  std::int64_t best = 0;         // keep this many of the best, which ValidationState lists
};
std::vector<std::int64_t> steps_to_remove(std::vector<std::int64_t> steps, std::int64_t saved,
                                          const Retention& retention,
                                          std::span<const std::int64_t> best_steps = {});
void remove_step(Storage& storage, const std::string& folder, std::int64_t iteration);

}  // namespace bev
