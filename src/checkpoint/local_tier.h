// Fast checkpoint tier on node-local disks. Every rank keeps its shard of the state on its machine,
// and a copy of its partner's, so that losing a machine loses no step. The folders are not shared,
// so there is no common manifest: each rank's record describes its shard, and a step is complete if
// the records of all ranks exist somewhere.
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
  // The partner of a rank is rank + `jump`, which should be on another machine; 0: no copies.
  // Collective.
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
  std::string record_;                // record of this rank's shard
  std::string partner_record_;        // record of the copy that this rank holds
  std::unique_ptr<OutputFile> copy_;  // copy being written
  std::string problem_;
  std::int64_t last_good_ = -1;
};

// The last step that is complete over all ranks; moves shards to the ranks that need them.
class LocalStep {
 public:
  // Collective; every rank passes its machine's folder. Null if there is no complete step.
  static std::unique_ptr<LocalStep> find(Group& world, const std::string& folder);

  std::int64_t iteration() const { return iteration_; }
  // Collective. Returns the manifest of the whole step.
  Manifest gather_manifest();
  // Collective. Fetches the shards that this rank needs (indices in the manifest) and does not have
  // from ranks that do.
  void fetch_shards(const Manifest& manifest, const std::vector<bool>& needed);

 private:
  LocalStep(Group& world, std::string folder) : world_(world), folder_(std::move(folder)) {}
  void pass_shard(const ShardEntry& shard, int source, int to);

  Group& world_;
  std::string folder_;
  std::int64_t iteration_ = -1;
  std::vector<std::string> records_;  // records of the step
  std::vector<int> holders_;          // a rank that holds each record
};

}  // namespace bev
