#include "train/checkpoint_config.h"

#include "base/fields.h"
#include "base/file.h"
#include "base/text.h"

namespace bev {

namespace {
constexpr double kMostIterations = 1e12;

void save_fields(CheckpointConfig& config, FieldList& list) {
  list.add("save", config.save,
           "folder for checkpoints: at intervals, at the end, and when the run is told to stop; "
           "metrics, loss curve and caches go there too");
  list.add("existing-run", config.existing_run,
           {{"refuse", ExistingRun::kRefuse},
            {"resume", ExistingRun::kResume},
            {"replace", ExistingRun::kReplace}},
           "when --save holds a run that --load does not name: refuse; resume it, as if --load "
           "named it; or replace it, which keeps the old run in the folder replaced-N in --save");
  list.add("save-interval", config.save_interval, "iterations between checkpoints; 0: at the end")
      .min(0)
      .limit(kMostIterations)
      .alias("persistent-save-interval");
  list.add("save-interval-mins", config.save_interval_mins,
           "minutes between checkpoints, in addition to --save-interval; 0: off")
      .min(0);
  list.add("save-retain-interval", config.save_retain_interval,
           "older checkpoints go unless their iteration is a multiple of it; 0: they stay")
      .min(0)
      .limit(kMostIterations);
  list.add("most-recent-k", config.most_recent_k,
           "of older checkpoints all but so many of the latest go; 0: they stay")
      .min(0)
      .limit(kMostIterations);
  list.add("keep-best", config.keep_best,
           "of older checkpoints all but so many with the best validation loss go, besides what "
           "the two flags above keep; 0: they stay")
      .min(0)
      .limit(kMostIterations);
  list.add("save-retry-interval", config.save_retry_interval,
           "iterations after which a failed save is tried again; 0: not before the next is due")
      .min(0)
      .limit(kMostIterations);
  list.add("async-save", config.async_save, "write checkpoints while training goes on");
  list.add("save-staging-mb", config.save_staging_mb,
           "memory in MiB that a process may hold of a checkpoint being written")
      .min(0)
      .limit(1e9)
      .defaults_to("half of the free memory");
  list.add("save-optim", config.save_optim, "with the state of the optimizer");
  list.add("save-hf", config.save_hf,
           "folder that holds the latest checkpoint in Hugging Face's format, exported in the "
           "background");
}

void non_persistent_fields(CheckpointConfig& config, FieldList& list) {
  list.add("non-persistent-save-interval", config.non_persistent_save_interval,
           "iterations between checkpoints of which only the last is kept; 0: none")
      .min(0)
      .limit(kMostIterations);
  list.add("non-persistent-ckpt-type", config.non_persistent_ckpt_type,
           {{"global", NonPersistentKind::kGlobal}, {"local", NonPersistentKind::kLocal}},
           "where: in a folder that all ranks share, or on the disk of each machine");
  list.add("non-persistent-global-ckpt-dir", config.non_persistent_global_ckpt_dir,
           "the shared folder")
      .defaults_to("non_persistent in --save");
  list.add("non-persistent-local-ckpt-dir", config.non_persistent_local_ckpt_dir,
           "the folder on each machine");
  list.add("replication", config.replication,
           "local: every rank keeps a copy of another machine's shard too");
  list.add("replication-jump", config.replication_jump,
           "local: how many ranks further the one is that keeps the copy")
      .min(0)
      .limit(1 << 20)
      .defaults_to("the ranks of a machine");
}

void load_fields(CheckpointConfig& config, FieldList& list) {
  list.add(
      "load", config.load,
      "folder of checkpoints to go on from, of whatever layout; without flags of a model, that "
      "run goes on with its own model, data and settings");
  list.add("use-checkpoint-args", config.use_checkpoint_args,
           "model, data and settings are those of the run of --load where no flag is given, also "
           "when flags describe the model");
  list.add("ckpt-step", config.ckpt_step, "the iteration to load")
      .min(0)
      .limit(kMostIterations)
      .defaults_to("the latest");
  list.add("load-optim", config.load_optim,
           "with the state of the optimizer, the schedules and the loss scale");
  list.add("load-rng", config.load_rng, "with the seed of dropout; otherwise --seed counts");
  list.add("finetune", config.finetune, "take the weights only and begin at iteration 0");
  list.add("load-fallback", config.load_fallback,
           "where a checkpoint cannot be read, take the latest complete one before it");
  list.add("exit-on-missing-checkpoint", config.exit_on_missing_checkpoint,
           "fail when there is nothing to load, instead of beginning anew");
  list.add("override-opt-param-scheduler", config.override_opt_param_scheduler,
           "the schedules of learning rate and weight decay are those of the flags, as they are "
           "anyway; nothing is said about changes of them");
  list.add("use-checkpoint-opt-param-scheduler", config.use_checkpoint_opt_param_scheduler,
           "the schedules are those of the checkpoint");
  list.add(
      "moe-use-upcycling", config.moe_use_upcycling,
      "begin at iteration 0 with experts that are copies of the MLPs of a dense model, that of "
      "--load or --hf-model; for the first run only");
  list.add("moe-upcycling-granularity", config.moe_upcycling_granularity,
           "how many times narrower an expert is than the dense MLP, whose parts it is a copy of")
      .min(1)
      .limit(1 << 16);
}
}  // namespace

void CheckpointConfig::fields(FieldList& list) {
  list.section("checkpointing");
  save_fields(*this, list);
  non_persistent_fields(*this, list);
  load_fields(*this, list);
}

std::string CheckpointConfig::non_persistent_global_folder(const std::string& base) const {
  bool given = !non_persistent_global_ckpt_dir.empty();
  return given ? non_persistent_global_ckpt_dir : join_path(base, "non_persistent");
}

std::vector<std::string> CheckpointConfig::problems() const {
  std::vector<std::string> out;
  auto needs = [&](bool given, const char* flag, const char* other, const std::string& folder) {
    if (given && folder.empty()) out.push_back(concat(flag, ": needs ", other, " DIR"));
  };
  needs(save_interval > 0, "--save-interval", "--save", save);
  needs(save_interval_mins > 0, "--save-interval-mins", "--save", save);
  needs(save_retain_interval > 0, "--save-retain-interval", "--save", save);
  needs(most_recent_k > 0, "--most-recent-k", "--save", save);
  needs(keep_best > 0, "--keep-best", "--save", save);
  needs(!save_hf.empty(), "--save-hf", "--save", save);
  bool local = non_persistent_ckpt_type == NonPersistentKind::kLocal;
  needs(local && non_persistent_save_interval > 0, "--non-persistent-ckpt-type",
        "--non-persistent-local-ckpt-dir", non_persistent_local_ckpt_dir);
  needs(!local && non_persistent_save_interval > 0 && non_persistent_global_ckpt_dir.empty(),
        "--non-persistent-save-interval", "--non-persistent-global-ckpt-dir DIR or --save", save);
  needs(ckpt_step >= 0, "--ckpt-step", "--load", load);
  needs(finetune, "--finetune", "--load", load);
  needs(use_checkpoint_args, "--use-checkpoint-args", "--load", load);
  needs(load_fallback, "--load-fallback", "--load", load);
  needs(exit_on_missing_checkpoint, "--exit-on-missing-checkpoint", "--load", load);
  if (override_opt_param_scheduler && use_checkpoint_opt_param_scheduler) {
    out.push_back(
        "--override-opt-param-scheduler: excludes --use-checkpoint-opt-param-scheduler; keep one");
  }
  if (save_retain_interval > 0 && save_interval > 0 && save_retain_interval % save_interval != 0) {
    out.push_back(concat("--save-retain-interval: ", save_retain_interval,
                         " is no multiple of --save-interval ", save_interval));
  }
  return out;
}

}  // namespace bev
