#include "app/choose_model.h"

#include "app/idle_flags.h"
#include "app/options.h"
#include "app/recorded_run.h"
#include "base/error.h"
#include "bridge/hf_model.h"
#include "models/families/family.h"

namespace bev {

namespace {
// Reads the model of --preset or --hf-model, before flags override it.
void read_model(RunConfig& run, const FieldList& fields, Options& options) {
  const std::string &preset_name = run.train.preset, &folder = run.train.hf_model;
  if (preset_name.empty() && folder.empty()) return;
  if (!preset_name.empty() && !folder.empty()) {
    // The other rules are checked on the preset.
    options.add_problems(std::vector{concat("--preset: ", preset_name, " and --hf-model ", folder,
                                            " both give the model; keep one")});
  }
  try {
    run.model = preset_name.empty() ? read_hf_config(folder) : preset(preset_name);
  } catch (const Error& error) {
    if (options.problems().empty()) throw;
    options.add_problems(std::vector<std::string>{error.what()});
    options.throw_problems();
  }
  if (preset_name.empty()) options.add_problems(model_conflicts(options, fields, run.model));
  options.apply(fields);
}
}  // namespace

void choose_model(RunConfig& run, const FieldList& fields, Options& options) {
  bool named = !run.train.preset.empty() || !run.train.hf_model.empty();
  if (!named && goes_on_alone(run.checkpoint, options)) {
    take_recorded_model(run.checkpoint, fields, options);
  } else {
    read_model(run, fields, options);
  }
  options.add_problems(idle_flags(options, fields, run));
}

}  // namespace bev
