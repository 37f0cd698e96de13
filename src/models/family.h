// Model families: what a Hugging Face model_type means for us, how its weights are named, and its
// presets. One file per family fills in a ModelFamily; families.def lists them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/config.h"
#include "models/hf_config.h"
#include "tensor/dtype.h"

namespace bev {

enum class WeightKind : std::uint8_t {
  kPlain,          // the same tensor
  kTranspose,      // gpt2's Conv1D stores [in, out]
  kQkvRows,        // q, k, v: our rows are q | k | v
  kGateUpRows,     // gate, up: our rows are gate | up
  kNeoxQkv,        // rows [N][q, k, v][D] against our q | k | v
  kExperts,        // the sources of each expert, one expert after the other
  kExpertColumns,  // all experts in one tensor [E, in, out], where ours is [E, out, in]
  kGateUpColumns,  // the same with columns of gate and up in turns; also of a bias [E, out]
};

// A row of the weight table: a module of ours and the ones of Hugging Face that make it up, whose
// ".weight" and ".bias" (where the model has one) follow it. Names hold {} for the layer's number,
// those of experts a second one for the expert's, and {+} for the number of a layer behind the
// model's last. A rule may also name a parameter of ours in full: then nothing follows.
struct WeightRule {
  std::string name;                  // ours
  std::vector<std::string> sources;  // Hugging Face's, in the order of our rows
  WeightKind kind = WeightKind::kPlain;
  // Another name in some files: of the single source, or of a tensor that holds all experts as our
  // parameter does (nothing follows that one).
  std::string other_source = {};
};

struct Preset {
  std::string name;
  ModelConfig config;
};

struct ModelFamily {
  std::string name;           // Hugging Face's model_type
  std::string architecture;   // its class with a language-model head
  std::string weight_prefix;  // of all weights but the head's; files of the bare model lack it
  ModelConfig (*read)(const HfConfig&) = nullptr;
  // Adds what distinguishes the model to a config.json; see to_hf().
  void (*write)(const ModelConfig&, HfConfig&) = nullptr;
  std::vector<WeightRule> weights;        // also of what only some configurations have
  std::vector<std::string> ignored = {};  // endings of stored names that hold no weights
  // How names begin of layers after the model's last, which files may hold and we do not read; "{}"
  // is the layer's number.
  std::string further_layers = {};
  // Files may hold the columns of experts in MXFP4: NAME_blocks and NAME_scales.
  bool packed_experts = false;
  std::vector<Preset> presets = {};
};

// All families, by name; find_family throws Error(kInput) with the nearest known name. `source` is
// the file that asked for it.
const std::vector<ModelFamily>& families();
const ModelFamily& find_family(std::string_view name, std::string_view source = {});

// The model of a config.json of transformers 4 or 5, in canonical form. Error(kInput) naming key
// and value for everything that would change the computation and that we do not know. Dropout is
// left at 0.
ModelConfig from_hf(const HfConfig& hf);
// Error(kConfig) naming each field that the family's config.json cannot express. Token ids are
// null; the caller knows the tokenizer. `dtype` is that of the stored weights.
HfConfig to_hf(const ModelConfig& config, Dtype dtype);

// All defaults resolved and fields without effect reset, so that equal models compare equal.
ModelConfig canonical(const ModelConfig& config);
// Names of the fields (flags without dashes) whose values differ, dropout aside.
std::vector<std::string> differing_fields(const ModelConfig& a, const ModelConfig& b);

// Error(kConfig) with the nearest known name.
ModelConfig preset(std::string_view name);
std::vector<std::string> preset_names();
// All weights of the model, tied ones counted once.
std::int64_t count_parameters(const ModelConfig& config);

}  // namespace bev
