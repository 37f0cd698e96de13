#include "app/commands.h"
#include "bridge/hf_model.h"
#include "models/family.h"

namespace bev {

void choose_model(RunConfig& run, const FieldList& fields, Options& options) {
  // Both at once is a broken rule that resolve() reports.
  if (!run.train.hf_model.empty() && !run.train.preset.empty()) return;
  if (!run.train.hf_model.empty()) {
    run.model = read_hf_config(run.train.hf_model);
    options.add_problems(model_conflicts(options, fields));
  } else if (!run.train.preset.empty()) {
    run.model = preset(run.train.preset);
  } else {
    return;
  }
  options.apply(fields);
}

}  // namespace bev
