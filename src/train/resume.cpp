#include "train/resume.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/config_copy.h"
#include "checkpoint/reader.h"
#include "checkpoint/restore.h"
#include "checkpoint/step_folders.h"

namespace bev {

std::optional<std::int64_t> step_to_load(const CheckpointConfig& config) {
  if (config.load.empty()) return std::nullopt;
  if (config.ckpt_step >= 0) return config.ckpt_step;
  std::optional<std::int64_t> step = latest_step(config.load);
  BEV_CHECK(step || !config.exit_on_missing_checkpoint, ErrorKind::kInput, "--load ", config.load,
            ": there is no checkpoint, and --exit-on-missing-checkpoint was given");
  return step;
}

TrainingState position_to_load(const CheckpointConfig& config) {
  if (config.finetune) return {};
  try {
    std::optional<std::int64_t> step = step_to_load(config);
    if (step) return CheckpointReader(step_folder(config.load, *step)).manifest().state;
  } catch (const Error&) {
  }
  return {};
}

namespace {

// The same decision everywhere: whether any rank failed.
bool any_failed(Engine& engine, bool failed) {
  std::int32_t word = failed ? 1 : 0;
  engine.mesh()
      .world()
      .host()
      .all_reduce({&word, Dtype::kI32, {1}}, Reduction::kMax, "load")
      .wait();
  return word != 0;
}

// The one before it, where there is one.
std::optional<std::int64_t> step_before(const std::string& folder, std::int64_t step) {
  std::optional<std::int64_t> found;
  for (std::int64_t other : complete_steps(folder)) {
    if (other < step) found = other;
  }
  return found;
}

TrainingState load_step(Engine& engine, const CheckpointConfig& config, std::int64_t step,
                        const std::vector<ConfigEntry>& run) {
  CheckpointReader reader(step_folder(config.load, step));
  std::string changes = config_difference(reader.manifest().config, run);
  bool first = engine.mesh().world().rank() == 0;
  if (first && !changes.empty() && !config.override_opt_param_scheduler) {
    log_info(concat("the configuration differs from that of ", reader.folder(), ":\n", changes));
  }
  restore_tensors(engine, reader, config.load_optim && !config.finetune);
  return reader.manifest().state;
}

}  // namespace

std::optional<TrainingState> resume(Engine& engine, const CheckpointConfig& config,
                                    const std::vector<ConfigEntry>& run) {
  bool first = engine.mesh().world().rank() == 0;
  std::optional<std::int64_t> step = step_to_load(config);
  if (!step) {
    if (first && !config.load.empty()) {
      log_warning(concat("--load ", config.load, ": there is no checkpoint; the run begins anew"));
    }
    return std::nullopt;
  }
  while (true) {
    TrainingState state;
    std::optional<Error> failure;
    try {
      state = load_step(engine, config, *step, run);
    } catch (const Error& error) {
      failure = error;
    }
    if (!any_failed(engine, failure.has_value())) {
      if (first) log_info(concat("loaded iteration ", *step, " of ", config.load));
      if (config.finetune) return std::nullopt;
      auto own_seed = static_cast<std::int64_t>(engine.options().seed);
      std::int64_t seed = config.load_rng ? state.seed : own_seed;
      engine.resume(config.load_optim ? state.updates : 0, static_cast<std::uint64_t>(seed));
      return state;
    }
    std::optional<std::int64_t> before =
        config.load_fallback ? step_before(config.load, *step) : std::nullopt;
    if (!before) {
      if (failure) throw *failure;
      BEV_FAIL(ErrorKind::kInput, "--load ", config.load, ": another rank cannot read iteration ",
               *step);
    }
    if (failure) log_warning(concat(failure->what(), "; going back to iteration ", *before));
    step = before;
  }
}

}  // namespace bev
