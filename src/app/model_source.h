// The model of a command that only reads weights: a Hugging Face folder (--hf-model) or a
// checkpoint (--load).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "models/config.h"
#include "parallel/engine.h"

namespace bev {

class FieldList;

struct ModelSource {
  std::string hf_model;
  std::string load;
  std::int64_t ckpt_step = -1;       // -1: the latest
  std::vector<std::string> adapter;  // a folder, or NAME=DIR for each of several
  bool named_adapters = false;       // requests name their adapter

  // Adds the flags to the current section.
  void fields(FieldList& list);
  std::vector<std::string> problems() const;
  struct Adapter {
    std::string name, folder;
  };
  std::vector<Adapter> adapters() const;
};

// A model that was found, opened once and read by all ranks of the process.
class SourceModel {
 public:
  // Throws Error(kInput) if there is none.
  explicit SourceModel(const ModelSource& source);

  // With the settings of the adapters.
  const ModelConfig& config() const { return config_; }
  // Folder with tokenizer, chat template and end tokens; "" if a run left none.
  const std::string& files() const { return files_; }
  void load_weights(RankModel& model) const;
  void load_weights(Engine& engine) const;

 private:
  void read_model(const ModelSource& source);

  ModelConfig config_;
  std::string files_;
  std::vector<ModelSource::Adapter> adapters_;
  std::unique_ptr<CheckpointReader> checkpoint_;  // null: weights are in files_
};

}  // namespace bev
