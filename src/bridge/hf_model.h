// Models in Hugging Face's form: folders with config.json and safetensors, in and out of any
// layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bridge/weight_export.h"
#include "models/config.h"
#include "models/hf_config.h"
#include "parallel/engine.h"

namespace bev {

// The folder's config.json; Error(kInput) when it is missing or broken.
HfConfig read_config_json(const std::string& folder);
ModelConfig read_hf_config(const std::string& folder);

// What this rank keeps of a parameter, in host memory: `runs` say which elements of the whole
// parameter are to be written where, then it is brought to its place.
class KeptPart {
 public:
  KeptPart(RankModel& model, const Param& param);
  struct Run {
    Range elements;
    std::byte* out = nullptr;
  };
  const std::vector<Run>& runs() const { return runs_; }
  Dtype dtype() const { return kept_.value.dtype; }
  void store() const;

 private:
  RankModel& model_;
  ValueRange kept_;
  std::vector<std::byte> part_;
  std::vector<Run> runs_;
};

// Reads the weights into a model of the same configuration; every rank reads the elements that it
// keeps.
void load_hf_weights(RankModel& model, const std::string& folder);
// The same of a model that trains: main weights follow.
void load_hf_weights(Engine& engine, const std::string& folder);

// Brings whole parameters, or their gradients, together on world rank 0, one after the other.
// All ranks construct it and call it in the same order.
class ParamGather {
 public:
  enum class What : std::uint8_t { kValue, kGradient };
  ParamGather(RankModel& model, What what);

  // The global parameter in host memory, for as long as this object lives, on world rank 0; an
  // empty tensor on others.
  Tensor gather(const std::string& name);

 private:
  const Param* held(const std::string& name) const;

  struct Whole {
    std::string name;
    Shape shape;
    bool wide = false;
    std::int32_t owner_stage = -1;
  };
  const Whole& whole(const std::string& name) const;
  Tensor gather_parts(const Param& param);

  RankModel& model_;
  What what_;
  Arena host_{make_host_memory()};
  std::vector<Whole> params_;  // of the whole model
};

// Files to put beside exported weights.
struct ExportFile {
  std::string name, content;
};
// Tokenizer and generation files of a model folder, for the export of a model that came from it.
std::vector<ExportFile> companion_files(const std::string& folder);

// The config.json of an export: the one the model came from (folder "" for none) as far as it still
// holds, with the dtype of the stored weights.
std::string export_config(const ModelConfig& model, Dtype dtype, const std::string& came_from);

// Writes the model's weights in its dtype. All ranks call it; rank 0 writes. Nothing
// half-written is left when it fails.
void export_hf(RankModel& model, const std::string& folder, const std::vector<ExportFile>& files);

struct ExportTarget {
  std::string folder;
  std::optional<Dtype> dtype = {};  // absent: each tensor keeps that of the source, bit for bit
  std::size_t threads = 1;          // that read ahead of the one that writes
};
// The same without a built model, parameter by parameter from a source.
void export_hf(const WeightMap& map, ParamSource& source, const ExportTarget& target,
               const std::vector<ExportFile>& files);

// From folder to folder.
void convert_hf(const std::string& from, const ExportTarget& to);

}  // namespace bev
