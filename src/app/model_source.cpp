#include "app/model_source.h"

#include "app/options.h"
#include "app/recorded_run.h"
#include "base/error.h"
#include "base/fields.h"
#include "bridge/hf_model.h"
#include "checkpoint/step_folders.h"
#include "checkpoint/weight_source.h"

namespace bev {

void ModelSource::fields(FieldList& list) {
  list.add("hf-model", hf_model, "Hugging Face folder of the model");
  list.add("load", load, "checkpoint instead: the folder of a run or of a step");
  list.add("ckpt-step", ckpt_step, "the step of a run's folder; -1: the latest").min(-1);
}

std::vector<std::string> ModelSource::problems() const {
  std::vector<std::string> out;
  if (load.empty())
    need(hf_model, "--hf-model", "the folder of the model, or a run by --load", out);
  if (load.empty() && ckpt_step >= 0) out.push_back("--ckpt-step: needs --load");
  if (!load.empty() && !hf_model.empty()) {
    out.push_back("--load: excludes --hf-model; keep one");
  }
  return out;
}

SourceModel::SourceModel(const ModelSource& source) : files_(source.hf_model) {
  if (source.load.empty()) {
    config_ = read_hf_config(source.hf_model);
    return;
  }
  checkpoint_ = std::make_unique<CheckpointReader>(find_step_folder(source.load, source.ckpt_step));
  config_ = recorded_model(*checkpoint_);
  files_ = recorded_files(checkpoint_->folder());
}

void SourceModel::load_weights(RankModel& model) const {
  if (checkpoint_) {
    load_checkpoint_weights(model, *checkpoint_);
  } else {
    load_hf_weights(model, files_);
  }
}

void SourceModel::load_weights(Engine& engine) const {
  load_weights(engine.model());
  engine.weights_written();
}

}  // namespace bev
