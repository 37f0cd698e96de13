#include "train/resume.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "bridge/adapter_start.h"
#include "checkpoint/agreement.h"
#include "checkpoint/config_copy.h"
#include "checkpoint/local_tier.h"
#include "checkpoint/reader.h"
#include "checkpoint/restore.h"
#include "checkpoint/step_folders.h"
#include "models/added_params.h"
#include "nn/adapter.h"

namespace bev {

namespace {
// Step selected by --load; nullopt if there is none.
std::optional<std::int64_t> step_to_load(const CheckpointConfig& config) {
  if (config.load.empty()) return std::nullopt;
  return config.ckpt_step >= 0 ? config.ckpt_step : latest_step(config.load);
}

// Manifest of that step; nullopt if there is none that can be read.
std::optional<Manifest> manifest_to_load(const CheckpointConfig& config) {
  try {
    std::optional<std::int64_t> step = step_to_load(config);
    if (step) return CheckpointReader(step_folder(config.load, *step)).manifest();
  } catch (const Error&) {
  }
  return std::nullopt;
}
}  // namespace

TrainingState position_to_load(const CheckpointConfig& config) {
  if (config.finetune || config.upcycles()) return {};
  std::optional<Manifest> manifest = manifest_to_load(config);
  return manifest ? manifest->state : TrainingState();
}

LoadedModel model_to_load(const CheckpointConfig& config) {
  LoadedModel model;
  std::optional<Manifest> manifest = manifest_to_load(config);
  if (!manifest) return model;
  for (const ConfigEntry& entry : manifest->config) {
    if (entry.name == "vocab-size") model.vocab_size = std::atoll(entry.value.c_str());
    if (entry.name == "num-experts") model.experts = entry.value != "0";
  }
  return model;
}

namespace {

// True for flags of the learning rate and weight decay schedules.
bool of_schedules(std::string_view flag) {
  return flag == "--lr" || flag == "--min-lr" || flag.starts_with("--lr-") ||
         flag.starts_with("--decoupled-") || flag == "--head-lr-mult" || flag == "--param-group" ||
         flag.find("weight-decay") != std::string_view::npos;
}

// Loads tensors and returns the state to continue from.
TrainingState load_from(CheckpointReader& reader, Engine& engine, const CheckpointConfig& config,
                        const std::vector<ConfigEntry>& run) {
  std::vector<ValueDifference> differences = config_differences(reader.manifest().config, run);
  if (reader.foreign() != nullptr) {  // it does not have all of our flags
    std::erase_if(differences, [](const auto& value) { return !value.in_both; });
  }
  if (config.override_opt_param_scheduler) {
    std::erase_if(differences, [](const auto& value) { return of_schedules(value.name); });
  }
  std::string changes = difference_table(differences, "checkpoint", "now");
  bool first = engine.model().mesh().world().rank() == 0;
  if (first && !changes.empty()) {
    log_info(concat("the configuration differs from that of ", reader.folder(), ":\n", changes));
  }
  if (first && reader.foreign() != nullptr) {
    for (const std::string& what : reader.foreign()->ignored) log_info("not loaded: " + what);
  }
  const bool adapted = std::ranges::any_of(
      reader.manifest().tensors, [](const auto& tensor) { return is_adapter_name(tensor.first); });
  const bool begins_adapters = engine.model().options().model.lora.used() && !adapted;
  BEV_CHECK(!begins_adapters || config.finetune, ErrorKind::kConfig, "--load ", config.load,
            ": the run trained no adapters; add ", "--finetune to begin some for its model");
  const bool begins_critic =
      engine.model().options().model.value_head && reader.find(kValueHead) == nullptr;
  BEV_CHECK(!begins_critic || config.finetune, ErrorKind::kConfig, "--load ", config.load,
            ": the run trained no critic; add --finetune to begin one for its model");
  restore_tensors(engine, reader, config.load_optim && !config.finetune);
  if (begins_adapters) {
    start_adapter(engine.model());
    engine.weights_written();
  }
  return reader.manifest().state;
}

// A candidate step to load.
struct Source {
  std::int64_t iteration = -1;
  std::string folder;                // folder of the step
  std::shared_ptr<LocalStep> local;  // on the local disks of the machines; null: in a shared folder
};

CheckpointReader open_source(const Source& source, Engine& engine, const CheckpointConfig& config) {
  if (!source.local) return CheckpointReader(source.folder);
  Manifest manifest = source.local->gather_manifest();
  CheckpointReader planned(source.folder, manifest);
  bool with_optimizer = config.load_optim && !config.finetune;
  std::vector<bool> needed = shards_to_restore(engine, planned, with_optimizer);
  source.local->fetch_shards(manifest, needed);
  return CheckpointReader(source.folder, std::move(manifest));
}

// Candidates, newest first; only one without --load-fallback.
std::vector<Source> sources_of(Engine& engine, const CheckpointConfig& config) {
  std::vector<Source> sources;
  std::optional<std::int64_t> lasting = step_to_load(config);
  if (!config.load.empty() && config.ckpt_step < 0) {
    const std::string& local_folder = config.non_persistent_local_ckpt_dir;
    std::shared_ptr<LocalStep> local;
    if (!local_folder.empty())
      local = LocalStep::find(engine.model().mesh().world().host(), local_folder);
    if (local) {
      sources.push_back({local->iteration(), step_folder(local_folder, local->iteration()), local});
    }
    std::string folder = config.non_persistent_global_folder(config.load);
    std::optional<std::int64_t> step = latest_step(folder);
    if (step) sources.push_back({*step, step_folder(folder, *step), nullptr});
  }
  if (lasting) sources.push_back({*lasting, step_folder(config.load, *lasting), nullptr});
  if (lasting && config.load_fallback) {
    for (std::int64_t step : complete_steps(config.load)) {
      if (step < *lasting) sources.push_back({step, step_folder(config.load, step), nullptr});
    }
  }
  std::ranges::stable_sort(sources, std::greater{}, &Source::iteration);
  if (!config.load_fallback && !sources.empty()) sources.resize(1);
  return sources;
}

}  // namespace

std::optional<TrainingState> resume(Engine& engine, const CheckpointConfig& config,
                                    const std::vector<ConfigEntry>& run) {
  bool first = engine.model().mesh().world().rank() == 0;
  std::vector<Source> sources = sources_of(engine, config);
  BEV_CHECK(!sources.empty() || !config.exit_on_missing_checkpoint, ErrorKind::kInput, "--load ",
            config.load, ": there is no checkpoint, and --exit-on-missing-checkpoint was given");
  if (sources.empty() && first && !config.load.empty()) {
    log_warning(concat("--load ", config.load, ": there is no checkpoint; the run begins anew"));
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const Source& source = sources[i];
    TrainingState state;
    std::optional<Error> failure;
    try {
      CheckpointReader reader = open_source(source, engine, config);
      state = load_from(reader, engine, config, run);
    } catch (const Error& error) {
      failure = error;
    }
    if (!any_rank(engine.model().mesh().world().host(), failure.has_value(), "load")) {
      if (first) log_info(concat("loaded iteration ", source.iteration, " of ", source.folder));
      if (config.finetune) return std::nullopt;
      auto own_seed = static_cast<std::int64_t>(engine.seed());
      std::int64_t seed = config.load_rng ? state.seed : own_seed;
      engine.resume(config.load_optim ? state.updates : 0, static_cast<std::uint64_t>(seed));
      return state;
    }
    if (i + 1 == sources.size()) {
      if (failure) throw *failure;
      BEV_FAIL(ErrorKind::kInput, source.folder, ": another rank cannot read it");
    }
    if (failure) {
      log_warning(concat(failure->what(), "; going back to iteration ", sources[i + 1].iteration));
    }
  }
  return std::nullopt;
}

}  // namespace bev
