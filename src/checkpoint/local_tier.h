// A fast tier on the disks of the machines themselves. Every rank keeps its share of the state in a
// folder of its machine and a copy of its partner's there too, so that the loss of a machine loses
// no step. Nobody shares the folders, so there is no common manifest: each rank's file says what
// its shard holds, and a step is there when those of all ranks are somewhere.
//
//   LOCAL/iter_0000100/rank_00003_of_00008_5f3c21ab.json     a manifest with one shard, or none
//   LOCAL/iter_0000100/shard_00003_5f3c21ab.safetensors
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/step_saver.h"

namespace bev {

class LocalSaver final : public StepSaver {
 public:
  // The partner of a rank is `jump` ranks further, which should be another machine's; 0: no copies.
  // All ranks construct it.
  LocalSaver(Engine& engine, Storage& storage, StagingPool& pool, SaverOptions options,
             std::int64_t jump);
  ~LocalSaver() override { abandon(); }

 private:
  std::string shard_path(std::int64_t iteration) const override;
  bool all_written(const TrainingState& state, Written mine) override;
  std::string settle(const TrainingState& state) override;
  std::string conclude(const TrainingState& state, std::string mine) override;

  std::string record_name(int rank) const;
  Manifest record_of(const TrainingState& state, const ShardEntry& shard) const;
  void exchange_copies(const std::string& folder, const ShardEntry& shard);
  void remove_other_steps(std::int64_t iteration);

  std::int64_t jump_;
  std::string run_;
  std::string record_;                // of this rank's shard
  std::string partner_record_;        // of the copy that this rank keeps
  std::unique_ptr<OutputFile> copy_;  // being written
  std::string problem_;
  std::int64_t last_good_ = -1;
};

// The last step that the ranks have between them, brought to where each rank can read what it needs
// of it.
class LocalStep {
 public:
  // All ranks, each with the folder of its machine; null when there is no whole step.
  static std::unique_ptr<LocalStep> find(Group& world, const std::string& folder);

  std::int64_t iteration() const { return iteration_; }
  // All ranks. The manifest of the whole step.
  Manifest gather_manifest();
  // All ranks: fetches the shards that this rank needs, by their place in the manifest, and does
  // not have, from ranks that do.
  void fetch_shards(const Manifest& manifest, const std::vector<bool>& needed);

 private:
  LocalStep(Group& world, std::string folder) : world_(world), folder_(std::move(folder)) {}
  void pass_shard(const ShardEntry& shard, int source, int to);

  Group& world_;
  std::string folder_;
  std::int64_t iteration_ = -1;
  std::vector<std::string> records_;  // files that make up the step
  std::vector<int> holders_;          // a rank that has each
};

}  // namespace bev
