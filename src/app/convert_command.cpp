// convert: weights to a Hugging Face folder, without an engine; of a dense model also to one with
// experts, there or in a checkpoint.
#include "app/commands.h"
#include "app/export_files.h"
#include "backend/cpu/cpu_kernels.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "bridge/weight_files.h"
#include "checkpoint/config_copy.h"
#include "checkpoint/saver.h"
#include "checkpoint/step_folders.h"
#include "checkpoint/weight_source.h"
#include "comm/world.h"
#include "train/text_data.h"
#include "train/upcycling.h"

namespace bev {

namespace {

// What the run that wrote the checkpoint was given, less what is not here any more.
RunConfig run_of(const CheckpointReader& reader, const ConvertOptions& convert) {
  RunConfig run;
  FieldList list;
  run.fields(list);
  apply_config(reader.manifest().config, list, reader.folder());
  std::string &model = run.train.hf_model, &tokenizer = run.data.tokenizer;
  if (!convert.hf_model.empty()) {
    if (tokenizer == model) tokenizer = convert.hf_model;
    model = convert.hf_model;
  } else if (!model.empty() && !path_exists(model)) {
    log_warning(concat("the run's --hf-model ", model,
                       " is not here: config.json is made anew; --hf-model names another place"));
    model.clear();
  }
  bool has_files = !tokenizer.empty() && !tokenizer.starts_with("null:");
  if (has_files && tokenizer_export_files(tokenizer).empty()) {
    log_warning(concat("the run's tokenizer ", tokenizer, " is not here: it is not exported"));
  }
  return run;
}

void convert_checkpoint(const ConvertOptions& convert, const ExportTarget& target) {
  CheckpointReader reader(find_step_folder(convert.load, convert.ckpt_step));
  RunConfig run = run_of(reader, convert);
  WeightMap map(run.model);
  CheckpointWeights weights(reader);
  weights.check(map.params());
  Dtype dtype = target.dtype.value_or(weights.dtype(map.params().front(), 0));
  export_hf(map, weights, target, export_files(run, dtype));
}

// Model flags describe what a dense model becomes; otherwise it stays what it is.
void check_model_flags(const FieldList& fields, Options& options) {
  std::vector<std::string> problems;
  for (const Setting& setting : options.settings()) {
    if (fields.find_entry(setting.field)->section == "convert") continue;
    problems.push_back(
        concat(setting.origin, ": is for --moe-use-upcycling; without it leave it out"));
  }
  options.add_problems(problems);
}

// The model with experts: that of the source, changed by the flags.
void choose_upcycled_model(CommandConfig& config, const FieldList& fields, Options& options) {
  const ConvertOptions& convert = config.convert;
  RunConfig& run = config.run;
  if (convert.load.empty()) {
    run.train.hf_model = convert.hf_model;
    choose_model(run, fields, options);
  } else {
    run = run_of(CheckpointReader(find_step_folder(convert.load, convert.ckpt_step)), convert);
    options.apply(fields);
  }
  options.add_problems(run.model.problems());
  options.add_problems(upcycling_problems(run.model, convert.moe_upcycling_granularity));
  options.throw_problems();
}

// As iteration 0 of a run, without an optimizer's state.
void save_upcycled(RunConfig& run, const ConvertOptions& convert, const DenseSource& from,
                   Dtype dtype) {
  run.precision.bf16 = dtype == Dtype::kBf16;
  run.precision.fp16 = dtype == Dtype::kF16;
  EngineOptions options;
  options.model = run.model;
  options.dtype = dtype;
  options.seed = static_cast<std::uint64_t>(convert.seed);
  options.gradients = false;
  options.threads = machine_threads();
  FieldList list;
  run.fields(list);
  StagingPool pool(std::size_t{64} << 20);
  std::unique_ptr<Storage> disk = make_disk_storage();
  run_thread_ranks(1, {}, [&](World& world) {
    Engine engine(world, cpu_kernels(), options);
    upcycle(engine, convert.moe_upcycling_granularity, from);
    Saver saver(engine, *disk, pool,
                {.folder = convert.save, .config = config_entries(list), .with_optimizer = false});
    TrainingState state;
    state.seed = convert.seed;
    saver.begin(state);
    SaveOutcome outcome = saver.finish();
    BEV_CHECK(outcome.problem.empty(), ErrorKind::kInput, convert.save, ": ", outcome.problem);
  });
  log_info(concat("wrote ", convert.save));
}

void convert_upcycled(CommandConfig& config, const FieldList& fields, Options& options,
                      const ExportTarget& target) {
  const ConvertOptions& convert = config.convert;
  RunConfig& run = config.run;
  choose_upcycled_model(config, fields, options);
  const DenseSource from{convert.load, convert.ckpt_step, convert.hf_model};
  ThreadPool pool(1);
  Arena arena(make_host_memory());
  Upcycling upcycling(
      run.model, convert.moe_upcycling_granularity, from,
      {cpu_kernels(), Stream{&pool, nullptr}, arena, static_cast<std::uint64_t>(convert.seed)});
  ParamMapping first;
  first.param = "embedding.word_embeddings.weight";
  Dtype dtype = target.dtype.value_or(upcycling.weights().dtype(first, 0));
  if (!convert.export_hf.empty()) {
    WeightMap map(run.model);
    export_hf(map, upcycling.weights(), target, export_files(run, dtype));
  }
  if (!convert.save.empty()) save_upcycled(run, convert, from, dtype);
}

}  // namespace

int run_convert(CommandConfig& config, const FieldList& fields, Options& options) {
  const ConvertOptions& convert = config.convert;
  options.add_problems(convert.problems());
  if (!convert.moe_use_upcycling) check_model_flags(fields, options);
  options.throw_problems();
  if (config.launch.process != 0) return kExitOk;  // one does it for all
  if (!convert.export_hf.empty()) check_export_folder(convert.export_hf);
  ExportTarget target{convert.export_hf};
  target.threads = static_cast<std::size_t>(machine_threads());
  if (!convert.dtype.empty()) target.dtype = parse_dtype(convert.dtype);
  if (convert.moe_use_upcycling) {
    convert_upcycled(config, fields, options, target);
  } else if (convert.load.empty()) {
    convert_hf(convert.hf_model, target);
  } else {
    convert_checkpoint(convert, target);
  }
  if (!convert.export_hf.empty()) log_info(concat("wrote ", convert.export_hf));
  return kExitOk;
}

}  // namespace bev
