// Checkpointing options: what a run saves and loads. Names and meanings are Megatron's where it has
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bev {

class FieldList;

enum class NonPersistentKind : std::uint8_t { kGlobal, kLocal };
// What to do if --save holds a run that --load does not name.
enum class ExistingRun : std::uint8_t { kRefuse, kResume, kReplace };

struct CheckpointConfig {
  std::string save;
  ExistingRun existing_run = ExistingRun::kRefuse;
  std::int64_t save_interval = 0;         // iterations; 0: at the end only
  double save_interval_mins = 0;          // 0: not by the clock
  std::int64_t save_retain_interval = 0;  // 0: this rule removes none
  std::int64_t most_recent_k = 0;         // 0: this rule removes none
  std::int64_t keep_best = 0;             // by validation loss; 0: this rule removes none
  std::int64_t save_retry_interval = 10;  // iterations after a failed save; 0: no retry
  bool async_save = true;
  std::int64_t save_staging_mb = 0;  // per process; 0: half of the free memory
  bool save_optim = true;
  std::string save_hf;

  // Frequent, short-lived checkpoints in between.
  std::int64_t non_persistent_save_interval = 0;  // iterations; 0: never
  NonPersistentKind non_persistent_ckpt_type = NonPersistentKind::kGlobal;
  std::string non_persistent_global_ckpt_dir;  // "": inside the folder of --save
  std::string non_persistent_local_ckpt_dir;
  bool replication = true;
  std::int64_t replication_jump = 0;  // 0: the ranks of a machine

  std::string load;
  bool use_checkpoint_args = false;
  std::int64_t ckpt_step = -1;  // < 0: the latest
  // Read from the manifest of the checkpoint to load; not flags.
  std::int64_t loaded_samples = 0;     // consumed by the run that is resumed
  std::int64_t loaded_vocab_size = 0;  // 0: unknown
  bool loads_experts = false;          // its model has experts
  bool load_optim = true;
  bool load_rng = true;
  bool finetune = false;
  bool load_fallback = false;
  bool exit_on_missing_checkpoint = false;
  bool override_opt_param_scheduler = false;
  bool use_checkpoint_opt_param_scheduler = false;

  // Upcycling: experts are initialised from a dense model.
  bool moe_use_upcycling = false;
  std::int64_t moe_upcycling_granularity = 1;  // parts an MLP is split into

  // Whether the weights are made of a dense model; a run that has begun goes on instead.
  bool upcycles() const { return moe_use_upcycling && !loads_experts; }

  void fields(FieldList& list);
  // `base` is the folder of --save or --load.
  std::string non_persistent_global_folder(const std::string& base) const;
  std::vector<std::string> problems() const;
};

}  // namespace bev
