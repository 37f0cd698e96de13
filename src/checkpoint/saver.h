// Saver to a shared folder: after all shards are on disk, rank 0 writes the manifest and publishes
// the step.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/step_folders.h"
#include "checkpoint/step_saver.h"

namespace bev {

class Saver final : public StepSaver {
 public:
  // Collective.
  Saver(Engine& engine, Storage& storage, StagingPool& pool, SaverOptions options,
        const Retention& retention = {});
  ~Saver() override { abandon(); }

 private:
  std::string shard_path(std::int64_t iteration) const override;
  bool all_written(const TrainingState& state, Written mine) override;
  std::string settle(const TrainingState& state) override;
  std::string conclude(const TrainingState& state, std::string mine) override;

  void commit(const TrainingState& state);
  void remove_old_steps(const TrainingState& saved);

  Retention retention_;
  std::string run_;                   // unique name of this run in saving folders
  std::vector<std::string> reports_;  // of all ranks, on rank 0
};

}  // namespace bev
