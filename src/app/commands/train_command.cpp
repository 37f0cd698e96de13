// train: a run from the configuration to the exported model.
#include <memory>
#include <optional>
#include <utility>

#include "app/choose_model.h"
#include "app/commands/commands.h"
#include "app/dry_run.h"
#include "app/epochs.h"
#include "app/export_files.h"
#include "app/memory_fit.h"
#include "app/options.h"
#include "app/ranks.h"
#include "app/recorded_run.h"
#include "app/replay.h"
#include "app/run_config.h"
#include "app/run_folder.h"
#include "app/run_outcome.h"
#include "app/run_summary.h"
#include "app/training.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/output.h"
#include "bridge/adapter_files.h"
#include "bridge/adapter_start.h"
#include "bridge/hf_model.h"
#include "bridge/weight_files.h"
#include "checkpoint/config_copy.h"
#include "checkpoint/step_folders.h"
#include "kernels/device.h"
#include "plan/flops.h"
#include "posttrain/completion_objective.h"
#include "posttrain/distill_objective.h"
#include "posttrain/reference_model.h"
#include "posttrain/upcycling.h"
#include "tokenizer/tokenizer.h"
#include "train/profile.h"
#include "train/report_file.h"
#include "train/resume.h"
#include "train/text_data.h"
#include "train/trainer.h"

namespace bev {

namespace {

struct TrainFlags {
  RunConfig run;

  void fields(FieldList& list) { run.fields(list); }
};

TrainerConfig trainer_config(const RunConfig& run) {
  TrainerConfig config{run.optim, run.batch, run.data, run.loader, run.train, run.log};
  config.fp16 = run.precision.fp16;
  config.checkpoint = run.checkpoint;
  return config;
}

// State that the ranks of a process share.
struct RunParts {
  const RunConfig& run;
  std::vector<ConfigEntry> config;
  const RunData& data;
  const StopSignal& stop;
  RunFolder* folder;  // null if nothing is saved, or in processes other than the first
  bool replaces;      // the run takes the place of another one in --save
  StagingPool staging;
  BatchMaker* maker = nullptr;  // instead of data
  std::unique_ptr<Storage> storage = make_disk_storage();
};

bool exports(const RunConfig& run) {
  return !run.train.export_hf.empty() || !run.checkpoint.save_hf.empty();
}

// What a rank that trains on preferences has besides its engine, which must outlive it.
class PreferenceParts {
 public:
  // Collective.
  PreferenceParts(Engine& engine, const RunConfig& run, const RunData& data) {
    const ObjectiveRule rule = run.data.preferences.rule();
    RankModel* reference = nullptr;
    if (rule.uses_reference() && data.needs_reference) reference = &choose_reference(engine, run);
    preparation_.emplace(rule, engine.model(), reference);
    engine.set_preparation(&*preparation_);
  }

 private:
  // The model itself without its adapters, or a model of a folder.
  RankModel& choose_reference(Engine& engine, const RunConfig& run) {
    const std::string& given = run.data.preferences.ref_model;
    if (given.empty() && run.model.lora.used()) return engine.model();
    const std::string& folder = given.empty() ? run.train.hf_model : given;
    BEV_CHECK(!folder.empty(), ErrorKind::kConfig, "--ref-model: is missing; the objective ",
              "compares with a reference, usually the model that the run began with");
    reference_ = open_reference(engine.model(), folder);
    return *reference_;
  }

  std::unique_ptr<RankModel> reference_;
  std::optional<CompletionPreparation> preparation_;
};

// The settings of a distillation; from a folder with logits, of at most the tokens that it has.
DistillSettings distill_settings(const RunConfig& run) {
  const PreferenceConfig& flags = run.data.preferences;
  DistillSettings settings = flags.rule().distill;
  const std::string& folder = flags.logits_load_dir;
  if (folder.empty()) return settings;
  const LogitFormat format = read_logit_format(folder);
  auto check = [&](bool fits, const char* flag, auto here, const char* what, auto there) {
    BEV_CHECK(fits, ErrorKind::kInput, flag, ": is ", here, ", and --logits-load-dir ", folder,
              " has logits of ", what, " ", there);
  };
  check(format.vocab_size == run.model.vocab_size, "--vocab-size", run.model.vocab_size,
        "a vocabulary of", format.vocab_size);
  check(format.temperature == settings.temperature, "--distill-temperature", settings.temperature,
        "temperature", format.temperature);
  check(settings.top_k <= format.top_k, "--distill-top-k", settings.top_k, "the likeliest",
        format.top_k);
  if (settings.top_k == 0) settings.top_k = format.top_k;
  return settings;
}

// What a rank that learns from a teacher has besides its engine, which must outlive it.
class DistillParts {
 public:
  // Loads the teacher of the objective, or what it has left. Collective.
  DistillParts(Engine& engine, const RunConfig& run, DistillObjective& objective) {
    const PreferenceConfig& flags = run.data.preferences;
    if (!flags.logits_load_dir.empty()) {
      logits_.emplace(flags.logits_load_dir);
      stored_.emplace(engine.model(), *logits_);
      engine.set_preparation(&*stored_);
      return;
    }
    const DistillSettings settings = distill_settings(run);
    if (!flags.logits_save_dir.empty()) keep_logits(engine, run, settings);
    teacher_ = open_reference(engine.model(), flags.teacher_model, "--teacher-model");
    objective.set_teacher(*teacher_);
    online_.emplace(settings, *teacher_, logits_ ? &*logits_ : nullptr);
    engine.set_preparation(&*online_);
  }

 private:
  void keep_logits(Engine& engine, const RunConfig& run, const DistillSettings& settings) {
    const PreferenceConfig& flags = run.data.preferences;
    const std::int64_t vocabulary = run.model.vocab_size;
    const LogitFormat format{
        .top_k = std::min(settings.top_k, vocabulary),
        .vocab_size = vocabulary,
        .temperature = settings.temperature,
        .dtype = flags.logits_save_dtype == "fp16" ? Dtype::kF16 : Dtype::kF32};
    logits_.emplace(flags.logits_save_dir, format, engine.model().mesh().world().rank());
  }

  std::unique_ptr<RankModel> teacher_;
  std::optional<TeacherLogits> logits_;
  std::optional<DistillPreparation> online_;
  std::optional<StoredPreparation> stored_;
};

// The adapter to go on with, or a new one.
void begin_adapter(Engine& engine, const std::string& folder) {
  if (!engine.model().options().model.lora.used()) return;
  if (!folder.empty()) return load_adapter(engine, folder);
  start_adapter(engine.model());
  engine.weights_written();
}

// Fills in `outcome` on the first rank of a process.
void train_rank(const RankStart& start, RunParts& parts, Trace* trace, RunOutcome& outcome) {
  const RunConfig& run = parts.run;
  EngineOptions options = engine_options(run, start.threads, start.local_rank);
  options.trace = trace;
  options.params_norm = run.log.log_params_norm;
  options.zero_gradients = run.log.log_num_zeros_in_grad;
  options.max_attention_logit = run.log.log_max_attention_logit;
  std::optional<CompletionObjective> objective;
  std::optional<DistillObjective> distill;
  if (run.data.preferences.distills()) {
    options.objective = &distill.emplace(distill_settings(run));
  } else if (parts.maker != nullptr) {
    parts.maker->change(options);
  } else if (run.data.preferences.any()) {
    objective.emplace(run.data.preferences.rule(), CompletionInputs());
    options.objective = &*objective;
  }
  Engine engine(start.world, start.kernels, options);
  TrainerConfig config = trainer_config(run);
  const std::string& folder = run.train.hf_model;
  if (run.checkpoint.upcycles()) {
    upcycle(engine, run.checkpoint.moe_upcycling_granularity,
            {folder.empty() ? run.checkpoint.load : "", run.checkpoint.ckpt_step, folder});
  } else {
    // A checkpoint with experts has all weights; the folder may be the dense model that they were
    // made of.
    if (!folder.empty() && !run.checkpoint.loads_experts) load_hf_weights(engine, folder);
    begin_adapter(engine, run.train.adapter);
    config.start = resume(engine, run.checkpoint, parts.config);
  }
  std::optional<PreferenceParts> preferences;
  if (objective) preferences.emplace(engine, run, parts.data);
  std::optional<DistillParts> teacher;
  if (distill) teacher.emplace(engine, run, *distill);
  std::unique_ptr<StepSource> source;
  if (parts.maker != nullptr) source = parts.maker->open(engine);
  config.source = source.get();
  if (parts.folder != nullptr && start.first) parts.folder->begin();
  if (parts.replaces && start.first) move_local_checkpoints(run.checkpoint);
  // Read before the run: at its end they may have moved.
  std::vector<ExportFile> files;
  if (exports(run)) files = export_files(run, run.precision.model_dtype());
  std::unique_ptr<BackgroundHfExport> hf_export;
  if (!run.checkpoint.save_hf.empty() && engine.model().mesh().world().rank() == 0) {
    hf_export = std::make_unique<BackgroundHfExport>(run.checkpoint.save_hf, run.model, files);
  }
  std::unique_ptr<RunSaver> saver;
  bool saves = !run.checkpoint.save.empty() || run.checkpoint.non_persistent_save_interval > 0;
  if (saves && !run.train.eval.skip_train) {
    saver = std::make_unique<RunSaver>(engine, *parts.storage, parts.staging, run.checkpoint,
                                       parts.config, hf_export.get());
  }
  Trainer trainer(engine, config, parts.data, &parts.stop, saver.get());
  TrainOutcome mine = trainer.run();
  // All that is saved and reported comes before exports, which may fail.
  if (start.first) {
    static_cast<TrainOutcome&>(outcome) = std::move(mine);
    outcome.trained = true;
    if (start.world.rank() == 0) outcome.drawn = draw_losses(run, outcome);
  }
  if (!run.train.export_hf.empty()) {
    export_hf(engine.model(), run.train.export_hf, files);
    if (start.first) outcome.exported = true;
  }
  if (!run.train.export_adapter.empty()) {
    export_adapter(engine.model(), run.train.export_adapter, folder);
  }
  if (hf_export) hf_export->finish();
}

SampleOrderSpec sample_order_spec(const RunConfig& run) {
  return {.kind = run.loader.dataloader_type,
          .num_samples = 0,  // known when the data is open
          .micro_batch_size = run.batch.micro_batch_size,
          .data_parallel_size = run.parallel.batch_ranks(),
          .data_sharding = run.loader.data_sharding};
}

// Null if no trace is requested.
std::unique_ptr<Profile> open_profile(const RunConfig& run, const Launch& launch) {
  if (run.profile.profile_trace.empty()) return nullptr;
  auto ranks = static_cast<int>(mesh_shape(run.parallel).size() / launch.processes);
  return std::make_unique<Profile>(run.profile, launch.process * ranks, ranks,
                                   device_kernels(run.runtime).device.trace());
}

// Checks at the start that outputs of the end of the run can be written.
void check_outputs(const RunConfig& run) {
  for (const std::string& folder : {run.train.export_hf, run.checkpoint.save_hf}) {
    if (folder.empty()) continue;
    check_export_folder(folder);
    export_files(run, run.precision.model_dtype());
  }
  if (exports(run) && !run.data.sft_data.empty()) {
    warn_of_endless_turns(run.data.tokenizer, run.data.chat_template);
  }
  BEV_CHECK(!exports(run) || !run.model.mup.use_mup, ErrorKind::kConfig,
            "--use-mup: Hugging Face has no place for its factors; leave out --export-hf and "
            "--save-hf");
  const TrainConfig& train = run.train;
  const std::pair<const char*, std::int64_t> dumps[] = {
      {"--save-activations-interval", train.save_activations_interval},
      {"--save-dgrads-interval", train.save_dgrads_interval},
      {"--save-wgrads-interval", train.save_wgrads_interval}};
  for (const auto& [flag, interval] : dumps) {
    BEV_CHECK(interval == 0 || !run.checkpoint.save.empty(), ErrorKind::kConfig, flag,
              ": needs --save DIR, where the files go");
  }
  const LogConfig& log = run.log;
  // The folder is made last: nothing is left of a run that is refused.
  const std::string& save = run.checkpoint.save;
  if (!save.empty()) check_report_path("--save", join_path(save, "checkpoint"));
  if (!log.loss_svg.empty()) check_report_path("--loss-svg", log.loss_svg);
  if (!run.profile.profile_trace.empty()) {
    check_report_path("--profile-trace", run.profile.profile_trace);
  }
  if (!log.metrics_out.empty()) check_report_path("--metrics-out", log.metrics_out);
  if (!log.tensorboard_dir.empty()) {
    check_report_path("--tensorboard-dir", join_path(log.tensorboard_dir, "events"));
  }
  if (!run.checkpoint.save.empty()) {
    bool replaces = run.checkpoint.existing_run == ExistingRun::kReplace;
    bool begun =
        run.checkpoint.upcycles() && !replaces && latest_step(run.checkpoint.save).has_value();
    BEV_CHECK(!begun, ErrorKind::kConfig, "--moe-use-upcycling: --save ", run.checkpoint.save,
              " has checkpoints of a run that has begun; go on with it by --load and without this "
              "flag, or give another folder");
    try {
      make_directories(run.checkpoint.save);
      AtomicFile writable(join_path(run.checkpoint.save, "writable"));
    } catch (const Error& error) {
      BEV_FAIL(error.kind(), "--save: ", error.what(), "; give a folder that can be written");
    }
  }
}

// A run that is started again after its end has nothing to do.
void note_reached_length(const RunConfig& run, const TrainingState& state) {
  const TrainConfig& train = run.train;
  bool by_iterations = train.train_iters > 0 && state.iteration >= train.train_iters;
  bool by_samples = train.train_samples > 0 && state.consumed_samples >= train.train_samples;
  if (state.iteration == 0 || !(by_iterations || by_samples)) return;
  log_warning(concat("--load ", run.checkpoint.load, ": the run has already reached its length of ",
                     by_iterations ? concat(train.train_iters, " iterations")
                                   : concat(train.train_samples, " samples"),
                     "; to train on, give a larger ",
                     by_iterations ? "--train-iters" : "--train-samples"));
}

// Megatron refuses such models, but there are Hugging Face models of this kind.
void warn_of_constant_probability(const ModelConfig& model) {
  RoutingRule rule = model.moe_training.routing(model.moe.routing());
  bool softmax = rule.score == RouterScore::kSoftmax;
  bool constant = rule.topk == 1 && (softmax ? !rule.pre_softmax : rule.normalize);
  if (!model.moe.any() || !constant) return;
  log_warning(concat("--moe-router-topk 1: with top-1 and ",
                     softmax ? "softmax after top-k" : "normalized scores",
                     " the probability is always 1, so the router gets no gradient from the LM "
                     "loss; use ",
                     softmax ? "--moe-router-pre-softmax or an aux loss" : "an aux loss"));
}

// Decides which run this is: a new one, one that goes on, or one that takes the place of another.
// Returns the last iteration in --save; nullopt if there is none.
std::optional<std::int64_t> choose_run(const RunConfig& run, const CommandInput& input) {
  bool saves = !run.checkpoint.save.empty();
  accept_step_folder(run.checkpoint, input.fields, input.options);
  std::optional<std::int64_t> last = settle_existing_run(run, input.fields, input.options);
  if (!goes_on_alone(run.checkpoint, input.options)) return last;
  std::string source = take_recorded_settings(run.checkpoint, input.fields, input.options);
  if (input.launch.process == 0) log_info(concat("settings that no flag gives are of ", source));
  return saves ? last : settle_existing_run(run, input.fields, input.options);
}

// What is going to run, and what the user may not expect of it.
void say_start(const RunConfig& run, const RuntimeConfig& runtime, const RunData& data,
               const Launch& launch, const MemoryFit& memory) {
  for (const std::string& line : run_summary(run, runtime, data, launch, memory)) log_info(line);
  for (const std::string& warning : start_warnings(run)) log_warning(warning);
  if (run.checkpoint.moe_use_upcycling && run.checkpoint.loads_experts) {
    log_info(concat("--moe-use-upcycling: ", run.checkpoint.load,
                    " has experts already; the run goes on from there"));
  }
  if (run.train.eval.skip_train && run.train.hf_model.empty() && run.checkpoint.load.empty()) {
    log_warning("--skip-train: the weights are random; give --load or --hf-model");
  }
  warn_of_constant_probability(run.model);
}

// A run of --epochs gets its length from the prepared data and is resolved again from `given`, the
// configuration before anything was derived from it. Returns conversations that were opened for it.
std::shared_ptr<const Dataset> settle_epochs(RunConfig& run, const RunConfig& given,
                                             const CommandInput& input) {
  if (!by_epochs(run.train)) return nullptr;
  std::shared_ptr<const Dataset> conversations = resolve_epochs(run, given);
  input.options.add_problems(run.resolve());
  input.options.throw_problems();
  place_outputs(run, input.options);
  return conversations;
}

// Opens the data; a run that makes its batches has none.
RunData open_run_data(const RunConfig& run, std::shared_ptr<const Dataset> conversations) {
  if (run.data.preferences.rollouts) return {};
  std::int64_t dp = run.parallel.batch_ranks();
  BatchSchedule batches(run.batch.spec(dp, run.data.seq_length));
  SampleNeeds needs = sample_needs(run.train, batches,
                                   eval_batch(run.train.eval, run.batch, dp, run.data.seq_length));
  needs.conversations = std::move(conversations);
  RunData data =
      open_data(run.data, run.model.vocab_size, static_cast<std::uint64_t>(run.runtime.seed), needs,
                sample_order_spec(run));
  BEV_CHECK(!run.train.eval.skip_train || !data.valid.empty() || !data.test.empty(),
            ErrorKind::kConfig,
            "--skip-train: there is neither validation nor test data to evaluate on");
  return data;
}

// Runs all ranks. An error after the training, in an export, is returned instead of thrown.
std::optional<Error> train_ranks(RunParts& parts, const Launch& launch,
                                 const RuntimeConfig& runtime, Profile* profile,
                                 RunOutcome& outcome) {
  const RunConfig& run = parts.run;
  try {
    run_ranks(launch, run.parallel, runtime, [&](const RankStart& start) {
      try {
        Trace* trace = profile != nullptr ? profile->rank(start.world.rank()) : nullptr;
        train_rank(start, parts, trace, outcome);
      } catch (const OutOfMemory& error) {
        BEV_FAIL(error.kind(), error.what(), memory_advice(run, launch, free_host_memory()));
      }
    });
  } catch (const Error& error) {
    if (!outcome.trained) throw;
    return error;
  }
  return std::nullopt;
}

// The exit code of a run, or its error.
int end_of_run(const RunOutcome& outcome, const std::optional<Error>& failure, bool speaks) {
  if (failure) throw *failure;
  if (!outcome.failure.empty() && !speaks) return kExitFailed;
  BEV_CHECK(outcome.failure.empty(), outcome.failure_kind, outcome.failure);
  BEV_CHECK(!speaks || outcome.save_problem.empty(), ErrorKind::kIo, outcome.save_problem);
  return outcome.reason == StopReason::kSignal ? kExitSignalBase + outcome.signal : kExitOk;
}

int dry_run(const RunConfig& run, bool speaks) {
  if (!speaks) return kExitOk;
  write_stdout(concat(run.train.json ? dry_run_json(run) : dry_run_text(run), "\n"));
  return kExitOk;
}

// The configuration for manifests: with the data as given, not the token files and caches made of
// it, which are where the run is.
std::vector<ConfigEntry> manifest_config(RunConfig& run, const DataConfig& given,
                                         const FieldList& fields) {
  DataConfig now = std::exchange(run.data, given);
  std::vector<ConfigEntry> entries = config_entries(fields);
  run.data = std::move(now);
  return entries;
}

}  // namespace

int run_training(RunConfig& run, const CommandInput& input, BatchMaker* maker) {
  bool speaks = input.launch.process == 0;  // process of world rank 0
  std::optional<std::int64_t> last_saved = choose_run(run, input);
  LoadedModel loaded = model_to_load(run.checkpoint);
  run.checkpoint.loaded_vocab_size = loaded.vocab_size;
  run.checkpoint.loads_experts = loaded.experts;
  choose_model(run, input.fields, input.options);
  // As TRL does: policy and reference are compared without noise.
  if (run.data.preferences.any()) {
    if (!input.options.given("hidden-dropout")) run.model.hidden_dropout = 0;
    if (!input.options.given("attention-dropout")) run.model.attention_dropout = 0;
  }
  if (maker != nullptr) input.options.add_problems(maker->settle(run));
  Replay replay = open_replay(run);
  std::unique_ptr<Tokenizer> tokenizer = choose_tokenizer(run.data, run.train.hf_model);
  const std::vector<std::string> notes = fit_new_model(run, input.options);
  TrainingState position = position_to_load(run.checkpoint);
  run.checkpoint.loaded_samples = position.consumed_samples;
  input.options.add_problems(check_epochs(run, input.options));
  const RunConfig given = run;
  input.options.add_problems(run.resolve());
  input.options.throw_problems();
  replay.check(run.model);
  if (run.data.tokenizer.empty()) run.data.tokenizer = run.train.hf_model;
  const DataConfig given_data = run.data;
  place_outputs(run, input.options);
  for (const std::string& note : notes) {
    if (speaks) log_info(note);
  }
  if (run.train.dry_run) return dry_run(run, speaks);
  check_device(run);
  const MemoryFit memory = check_memory(run, input.launch);
  if (maker != nullptr) maker->prepare(run, tokenizer.get(), input);
  StopSignal stop("this step", run.train.exit_signal_number());
  std::optional<RunFolder> folder;
  on_process_0(input.launch, [&] {
    check_outputs(run);
    bool saves = !run.checkpoint.save.empty() && !run.train.eval.skip_train;
    if (saves) folder.emplace(run, input.options, last_saved);
  });
  RunData data = std::move(replay.data);
  if (!data.replay) {
    bool ready = run.data.text.empty() || prepare_text(run.data, *tokenizer, stop, speaks);
    if (!ready) return kExitSignalBase + stop.received();
    std::shared_ptr<const Dataset> conversations = settle_epochs(run, given, input);
    data = open_run_data(run, std::move(conversations));
  }
  if (speaks) note_reached_length(run, position);
  std::int64_t& jump = run.checkpoint.replication_jump;
  if (jump == 0) jump = run.parallel.ranks * input.launch.local_processes;
  const RuntimeConfig runtime = paying_threads(
      run, input.launch, model_flops(run.model, run.batch.micro_batch_size, run.data.seq_length));
  if (speaks) say_start(run, runtime, data, input.launch, memory);
  std::unique_ptr<Profile> profile = open_profile(run, input.launch);
  FieldList recorded;  // without flags that only `rl` has
  run.fields(recorded);
  RunParts parts{run,
                 manifest_config(run, given_data, recorded),
                 data,
                 stop,
                 folder ? &*folder : nullptr,
                 replaces_run(run.checkpoint, last_saved),
                 StagingPool(staging_bytes(run.checkpoint, input.launch.local_processes)),
                 maker};
  RunOutcome outcome;
  std::optional<Error> failure = train_ranks(parts, input.launch, runtime, profile.get(), outcome);
  if (profile) profile->finish();
  if (speaks && maker != nullptr && outcome.trained) maker->finish(outcome);
  if (speaks) print_summary(run, outcome);
  return end_of_run(outcome, failure, speaks);
}

namespace {

int run_train(TrainFlags& wanted, const CommandInput& input) {
  return run_training(wanted.run, input);
}

}  // namespace

const Command kTrainCommand = {
    .name = "train",
    .summary = "train a model, or continue one, and export it",
    .examples =
        "bevatron train --preset gpt2-124m --text book.txt --seq-length 256 --train-iters 500 "
        "--export-hf out\n"
        "bevatron train --config run.yaml --tp 2 --pp 2 --train-iters 100 --save run --load run\n"
        "bevatron train --load run --train-iters 200\n"
        "bevatron train --preset llama3-8b --tp 8 --dp 4 --bf16 --dry-run",
    .call = call_of<TrainFlags, run_train>,
    .usual =
        "preset hf-model text data-path sft-data tokenizer seq-length train-iters epochs "
        "micro-batch-size global-batch-size lr bf16 device save save-interval load "
        "eval-interval export-hf dry-run"};

}  // namespace bev
