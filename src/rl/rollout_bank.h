// The rollouts of a run on disk: those of each phase are written before the first update with them.
// A run that goes on from a checkpoint takes them from here, so that it is the same run whatever
// the rewards are made by, and may begin in the middle of a phase.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rl/rollout.h"

namespace bev {

class RolloutBank {
 public:
  // In a folder, of which the oldest files go when they are more than `max_bytes`; "": keeps
  // nothing.
  RolloutBank(std::string folder, std::int64_t max_bytes, std::string settings);

  // The rollouts of a phase made under the same settings, or, with `any`, under any; nothing if
  // there are none that can be read.
  std::optional<RolloutPhase> find(std::int64_t phase, bool any) const;
  // Throws Error(kIo).
  void save(const RolloutPhase& phase) const;

 private:
  std::string path(std::int64_t phase) const;

  std::string folder_;
  std::int64_t max_bytes_;
  std::string settings_;
};

}  // namespace bev
