// Checkpoint manifest (manifest.json): tensors, shards and the training state. Only the division
// into shards depends on the layout. docs/checkpoint-format.md describes the format.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/box.h"
#include "checkpoint/validation_state.h"
#include "optim/loss_scaler.h"
#include "optim/lr_schedule.h"
#include "tensor/dtype.h"

namespace bev {

class FieldList;

inline constexpr char kManifestName[] = "manifest.json";
// Unit of checksums in a shard, so that a reader of a slice can verify it without reading more.
inline constexpr std::size_t kBlockBytes = std::size_t{4} << 20;

// Training state other than tensors.
struct TrainingState {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;   // position in the data
  std::int64_t scheduled_samples = 0;  // position in the schedules; skipped steps do not count
  std::int64_t consumed_tokens = 0;
  std::int64_t skipped = 0;  // skipped iterations
  std::int64_t updates = 0;  // optimizer updates, for bias correction
  std::int64_t seed = 0;     // of dropout and so on; there is no other random state
  LossScaler::State scaler;
  LrSchedule lr;
  WeightDecaySchedule weight_decay;
  ValidationState validation = {};

  void fields(FieldList& list);
};

// A resolved configuration value, in flag syntax.
struct ConfigEntry {
  std::string section, name, value;
  bool operator==(const ConfigEntry&) const = default;
};

struct GlobalTensor {
  Dtype dtype = Dtype::kF32;
  Shape shape;
  bool operator==(const GlobalTensor&) const = default;
};

// A safetensors file. Each of its tensors is a piece: a box of a global tensor, named
// "NAME[0:4,2:8]".
struct ShardEntry {
  std::string file;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> checksums;  // one per kBlockBytes of the file; the last may be short
  std::vector<std::string> pieces;
};

struct Manifest {
  std::string program_version;
  TrainingState state;
  std::vector<ConfigEntry> config;
  std::map<std::string, GlobalTensor> tensors;
  std::vector<ShardEntry> shards;
  std::map<std::string, std::int64_t> late_starts = {};  // Optimizer::late_starts
};

std::string manifest_json(Manifest manifest);
// Throws Error(kInput) naming `path` unless the text is a manifest whose pieces tile its tensors.
Manifest parse_manifest(std::string_view text, const std::string& path);

// The same for a manifest with only part of the shards, and the remaining checks once all are
// merged.
Manifest parse_manifest_part(std::string_view text, const std::string& path);
void check_manifest(const Manifest& manifest, const std::string& path);

// A single entry of the shard table.
std::string shard_json(const ShardEntry& shard);
ShardEntry parse_shard_json(std::string_view text, const std::string& path);

std::string piece_name(std::string_view tensor, const Box& box);
// Tensor and box; nullopt if it is not the name of a piece.
std::optional<std::pair<std::string, Box>> parse_piece_name(std::string_view name);

}  // namespace bev
