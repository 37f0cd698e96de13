// Model families: how a Hugging Face model_type maps to a ModelConfig, its weight names and its
// presets. One file per family fills in a ModelFamily; families.def lists them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/config.h"
#include "models/families/hf_config.h"
#include "tensor/dtype.h"

namespace bev {

enum class WeightKind : std::uint8_t {
  kPlain,          // same tensor
  kTranspose,      // gpt2's Conv1D stores [in, out]
  kQkvRows,        // q, k, v: our rows are q | k | v
  kGateUpRows,     // gate, up: our rows are gate | up
  kUnitRow,        // [1, N] against our [N]
  kScalar,         // [] against our [1]
  kNeoxQkv,        // rows [N][q, k, v][D] against our q | k | v
  kGatedQkvRows,   // q with rows [N][q, gate][D], k, v: ours are gate | q | k | v; else kQkvRows
  kDeltaRows,      // q | k | v, z, b, a of the gated delta rule: ours are q | k | v | z | b | a
  kDeltaGroups,    // the same with rows [key heads][q, k, v, z] and [key heads][b, a]
  kExperts,        // the sources of each expert, expert after expert
  kExpertColumns,  // all experts in one tensor [E, in, out]; ours is [E, out, in]
  kGateUpColumns,  // the same with interleaved columns of gate and up; also for a bias [E, out]
};

// Weight mapping: one of our modules and the Hugging Face modules that form it; ".weight" and
// ".bias" (if the model has one) are appended to both. In names, {} is the layer index, a second {}
// the expert index, and {+} the index of a layer after the last (MTP). If a rule names a whole
// parameter of ours, nothing is appended.
struct WeightRule {
  std::string name;                  // ours
  std::vector<std::string> sources;  // Hugging Face's, in the order of our rows
  WeightKind kind = WeightKind::kPlain;
  // Alternative name in some files: of the single source, or of a tensor that holds all experts in
  // our layout (nothing is appended to the latter).
  std::string other_source = {};
  // For models with this head alone; kNone: all.
  LabelKind labels = LabelKind::kNone;
  bool untied = false;  // for models alone whose output layer has weights of its own
};

struct Preset {
  std::string name;
  ModelConfig config;
};

struct ModelFamily {
  std::string name;           // Hugging Face's model_type
  std::string architecture;   // class name with a language-model head
  std::string weight_prefix;  // of all weights but the head; absent in files of the bare model
  ModelConfig (*read)(const HfConfig&) = nullptr;
  // Adds the fields of the family to a config.json; see to_hf().
  void (*write)(const ModelConfig&, HfConfig&) = nullptr;
  std::vector<WeightRule> weights;        // including weights that only some configurations have
  std::vector<std::string> ignored = {};  // suffixes of stored names that are no weights
  // Alternative to weight_prefix in some files.
  std::string other_prefix = {};
  // Prefixes of stored names that belong to parts which are not read.
  std::vector<std::string> ignored_parts = {};
  // Prefix of layers after the last that files may contain and we do not read; "{}" is the layer
  // index.
  std::string further_layers = {};
  // pad_token_id of a config.json without one; -1: none.
  std::int64_t default_pad = -1;
  // Files may store expert weights in MXFP4: NAME_blocks and NAME_scales.
  bool packed_experts = false;
  std::vector<Preset> presets = {};  // at least one, the smallest first
};

// All families, sorted by name; find_family throws Error(kInput) with the nearest known name.
// `source` is the file that contained the name.
const std::vector<ModelFamily>& families();
const ModelFamily& find_family(std::string_view name, std::string_view source = {});

// Values of model_type that find_family takes for a family.
std::vector<std::string> model_types(std::string_view family);

// The model of a config.json of transformers 4 or 5, in canonical form. Throws Error(kInput) naming
// key and value for every unknown setting that would change the computation. Dropout is left at 0.
ModelConfig from_hf(const HfConfig& hf);
// Throws Error(kConfig) naming each field that the config.json of the family cannot express. Token
// ids are null; the caller knows the tokenizer. `dtype` is that of the stored weights.
HfConfig to_hf(const ModelConfig& config, Dtype dtype);

// Resolves all defaults and resets fields without effect, so that equal models compare equal.
ModelConfig canonical(const ModelConfig& config);
// Names of the fields (flags without dashes) that differ, except dropout.
std::vector<std::string> differing_fields(const ModelConfig& a, const ModelConfig& b);

// Throws Error(kConfig) with the nearest known name.
ModelConfig preset(std::string_view name);
std::vector<std::string> preset_names();
// The model of --family alone: the family's smallest preset. Throws Error(kConfig) with the nearest
// known name.
ModelConfig family_defaults(std::string_view name);
// Number of weights; tied ones count once.
std::int64_t count_parameters(const ModelConfig& config);

}  // namespace bev
