// convert: weights to a Hugging Face folder, without an engine.
#include "app/commands.h"
#include "app/export_files.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "bridge/weight_files.h"
#include "checkpoint/config_copy.h"
#include "checkpoint/step_folders.h"
#include "checkpoint/weight_source.h"
#include "train/text_data.h"

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

}  // namespace

int run_convert(CommandConfig& config, const FieldList&, Options& options) {
  const ConvertOptions& convert = config.convert;
  options.add_problems(convert.problems());
  options.throw_problems();
  if (config.launch.process != 0) return kExitOk;  // one does it for all
  check_export_folder(convert.export_hf);
  ExportTarget target{convert.export_hf};
  target.threads = static_cast<std::size_t>(machine_threads());
  if (!convert.dtype.empty()) target.dtype = parse_dtype(convert.dtype);
  if (convert.load.empty()) {
    convert_hf(convert.hf_model, target);
  } else {
    convert_checkpoint(convert, target);
  }
  log_info(concat("wrote ", convert.export_hf));
  return kExitOk;
}

}  // namespace bev
