// Import and export of Hugging Face models: folders with config.json and safetensors, for any
// layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "autograd/param.h"
#include "base/function_ref.h"
#include "bridge/weight_export.h"
#include "models/config.h"
#include "models/families/hf_config.h"
#include "parallel/engine.h"

namespace bev {

// config.json of the folder; throws Error(kInput) if it is missing or invalid.
HfConfig read_config_json(const std::string& folder);
ModelConfig read_hf_config(const std::string& folder);

// Host buffer for this rank's shard of a parameter: `runs` map elements of the global parameter to
// addresses in the buffer; store() copies it to the device.
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

// Loads the weights into a model of the same configuration; every rank reads only its shard. A head
// for sequence classification that the folder's configuration does not have keeps its initial
// values.
void load_hf_weights(RankModel& model, const std::string& folder);
// The same for a model in training; also sets the master weights.
void load_hf_weights(Engine& engine, const std::string& folder);

// Gathers whole parameters, or their gradients, on world rank 0, one at a time. Collective: all
// ranks construct it and call it in the same order.
class ParamGather {
 public:
  enum class What : std::uint8_t { kValue, kGradient };
  ParamGather(RankModel& model, What what);

  // The global parameter in host memory owned by this object, on world rank 0; an empty tensor on
  // other ranks.
  Tensor gather(const std::string& name);

 private:
  const Param* held(const std::string& name) const;

  struct Whole {
    std::string name;
    Shape shape;
    ParamFormat format = ParamFormat::kModel;
    std::int32_t owner_stage = -1;
  };
  const Whole& whole(const std::string& name) const;
  Tensor gather_parts(const Param& param);

  RankModel& model_;
  What what_;
  Arena host_{make_host_memory()};
  std::vector<Whole> params_;  // of the whole model
};

// Receives a tensor of an export and its bytes, in the dtype of its declaration.
using ExportSink = FunctionRef<void(const ExportTensor& tensor, std::span<const std::byte> bytes)>;
// Gathers parameters, or their gradients, and hands their Hugging Face tensors to world rank 0, in
// order. Collective.
void gather_tensors(RankModel& model, ParamGather::What what, const WeightMap& map,
                    std::span<const ExportTensor> tensors, ExportSink sink);

// A file to write next to the exported weights.
struct ExportFile {
  std::string name, content;
};
// Tokenizer and generation files of the model folder that an exported model came from.
std::vector<ExportFile> companion_files(const std::string& folder);

// config.json of an export: the original one (folder "" for none) as far as it still applies, with
// the dtype of the stored weights.
std::string export_config(const ModelConfig& model, Dtype dtype, const std::string& came_from);

// The names of the labels in the config.json of a folder, by number; empty if it has none.
std::vector<std::string> read_label_names(const std::string& folder);
// Sets those of a config.json; nothing is changed if there are none.
void set_label_names(std::string& config, const std::vector<std::string>& names);

// Writes the model's weights in its dtype. Collective; rank 0 writes. Nothing partial is left on
// failure.
void export_hf(RankModel& model, const std::string& folder, const std::vector<ExportFile>& files);

struct ExportTarget {
  std::string folder;
  std::optional<Dtype> dtype = {};    // nullopt: each tensor keeps the source's dtype, bit for bit
  std::size_t threads = 1;            // reader threads ahead of the writing one
  std::optional<Nf4Format> nf4 = {};  // the matrices of linear layers in NF4
};
// Same without a built model, parameter by parameter from a source.
void export_hf(const WeightMap& map, ParamSource& source, const ExportTarget& target,
               const std::vector<ExportFile>& files);

// Converts from folder to folder. `amend` may change the files next to the weights.
void convert_hf(const std::string& from, const ExportTarget& to,
                FunctionRef<void(std::vector<ExportFile>& files)> amend);
void convert_hf(const std::string& from, const ExportTarget& to);

}  // namespace bev
