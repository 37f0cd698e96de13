#include "app/model_source.h"

#include <set>

#include "app/choose_model.h"
#include "app/options.h"
#include "app/recorded_run.h"
#include "base/error.h"
#include "base/fields.h"
#include "bridge/adapter_config.h"
#include "bridge/adapter_files.h"
#include "bridge/hf_model.h"
#include "checkpoint/step_folders.h"
#include "checkpoint/weight_source.h"
#include "models/lora.h"

namespace bev {

void ModelSource::fields(FieldList& list) {
  list.add("hf-model", hf_model, "Hugging Face folder of the model");
  list.add("load", load, "checkpoint instead: the folder of a run or of a step");
  list.add("ckpt-step", ckpt_step, "the step of a run's folder; -1: the latest").min(-1);
  list.add("adapter", adapter,
           named_adapters
               ? "NAME=DIR for each LoRA adapter in peft's format; requests choose one as "
                 "their model"
               : "folder of a LoRA adapter for the model, in peft's format");
}

std::vector<std::string> ModelSource::problems() const {
  std::vector<std::string> out;
  if (load.empty())
    need(hf_model, "--hf-model", "the folder of the model, or a run by --load", out);
  if (load.empty() && ckpt_step >= 0) out.push_back("--ckpt-step: needs --load");
  if (!load.empty() && !hf_model.empty()) {
    out.push_back("--load: excludes --hf-model; keep one");
  }
  if (!named_adapters && adapter.size() > 1) {
    out.push_back(concat("--adapter: ", adapter.size(), " folders; give one"));
  }
  std::set<std::string> names;
  for (const Adapter& each : adapters()) {
    if (!named_adapters) break;
    bool complete = !each.name.empty() && !each.folder.empty();
    if (!complete) out.push_back(concat("--adapter: ", each.folder, " has no name; give NAME=DIR"));
    if (complete && !names.insert(each.name).second) {
      out.push_back(concat("--adapter: ", each.name, " is the name of two"));
    }
  }
  return out;
}

std::vector<ModelSource::Adapter> ModelSource::adapters() const {
  std::vector<Adapter> out;
  for (const std::string& text : adapter) {
    std::size_t equals = named_adapters ? text.find('=') : std::string::npos;
    bool named = equals != std::string::npos;
    out.push_back({named ? text.substr(0, equals) : "", named ? text.substr(equals + 1) : text});
  }
  return out;
}

namespace {
// What several adapters in a batch cannot have.
void check_chosen(const ModelConfig& model, const std::string& folder) {
  BEV_CHECK(!model.lora.dora, ErrorKind::kConfig, "--adapter ", folder,
            ": DoRA cannot differ between requests; merge it by bevatron convert --merge-lora");
  for_each_copy(model, [&](const Param& param, const Param&) {
    BEV_FAIL(ErrorKind::kConfig, "--adapter ", folder, ": modules_to_save: ", param.name,
             " cannot differ between requests; merge it by bevatron convert --merge-lora");
  });
  ModelConfig own = model;
  LoraRules rules(own, own.lora);
  for_each_adapter(own, rules, [&](const Param& weight, const AdaptedModule& module) {
    BEV_CHECK(weight.shape.ndim() == 2, ErrorKind::kConfig, "--adapter ", folder, ": ",
              module.names.front(), " belongs to experts, whose adapters cannot differ between ",
              "requests; merge it by bevatron convert --merge-lora");
  });
}
}  // namespace

SourceModel::SourceModel(const ModelSource& source)
    : files_(source.hf_model), adapters_(source.adapters()) {
  read_model(source);
  config_.lora.dropout = 0;  // of training alone
  if (adapters_.empty()) return;
  BEV_CHECK(!config_.lora.used(), ErrorKind::kConfig, "--adapter ", adapters_.front().folder,
            ": the model of --load ", source.load, " has adapters already; leave one out");
  for (std::size_t i = 0; i < adapters_.size(); ++i) {
    LoraConfig lora = read_adapter_config(adapters_[i].folder);
    lora.dropout = 0;
    if (config_.num_labels == 0) config_.num_labels = adapter_labels(adapters_[i].folder);
    if (!source.hf_model.empty()) choose_pad_token(source.hf_model, config_);
    if (source.named_adapters) {
      ModelConfig alone = config_;
      alone.lora = lora;
      check_chosen(alone, adapters_[i].folder);
    }
    if (i == 0) {
      config_.lora = std::move(lora);
    } else {
      config_.more_loras.push_back(std::move(lora));
    }
  }
}

void SourceModel::read_model(const ModelSource& source) {
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
  for (std::size_t i = 0; i < adapters_.size(); ++i) load_adapter(model, adapters_[i].folder, i);
}

void SourceModel::load_weights(Engine& engine) const {
  load_weights(engine.model());
  engine.weights_written();
}

}  // namespace bev
