// manifest.json of a checkpoint: what is in it, where, and where the run stood. Nothing in it but
// the cut into shards depends on the layout. docs/checkpoint-format.md describes it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/box.h"
#include "optim/loss_scaler.h"
#include "optim/lr_schedule.h"
#include "tensor/dtype.h"

namespace bev {

class FieldList;

inline constexpr char kManifestName[] = "manifest.json";
// Each block of a shard has a checksum of its own, so that a reader of a slice can check what it
// reads and need read no more.
inline constexpr std::size_t kBlockBytes = std::size_t{4} << 20;

// Where a run stands, beside its tensors.
struct TrainingState {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;   // the position in the data
  std::int64_t scheduled_samples = 0;  // the position in the schedules: skipped steps do not count
  std::int64_t consumed_tokens = 0;
  std::int64_t skipped = 0;  // iterations
  std::int64_t updates = 0;  // of the optimizer, for its bias correction
  std::int64_t seed = 0;     // of dropout and the like, which have no other state
  LossScaler::State scaler;
  LrSchedule lr;
  WeightDecaySchedule weight_decay;

  void fields(FieldList& list);
};

// A value of the configuration that the run had resolved, as a flag would give it.
struct ConfigEntry {
  std::string section, name, value;
  bool operator==(const ConfigEntry&) const = default;
};

struct GlobalTensor {
  Dtype dtype = Dtype::kF32;
  Shape shape;
  bool operator==(const GlobalTensor&) const = default;
};

// A safetensors file. Its tensors are pieces: a box of a global tensor each, named "NAME[0:4,2:8]".
struct ShardEntry {
  std::string file;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> checksums;  // of each kBlockBytes of the file, the last maybe shorter
  std::vector<std::string> pieces;
};

struct Manifest {
  std::string program_version;
  TrainingState state;
  std::vector<ConfigEntry> config;
  std::map<std::string, GlobalTensor> tensors;
  std::vector<ShardEntry> shards;
};

std::string manifest_json(Manifest manifest);
// Error(kInput) naming `path` unless the text is a manifest whose pieces make up its tensors, every
// element once.
Manifest parse_manifest(std::string_view text, const std::string& path);

// The same of a manifest that has a part of the shards only, and what is left to check when all are
// together.
Manifest parse_manifest_part(std::string_view text, const std::string& path);
void check_manifest(const Manifest& manifest, const std::string& path);

// An entry of the shard table by itself.
std::string shard_json(const ShardEntry& shard);
ShardEntry parse_shard_json(std::string_view text, const std::string& path);

std::string piece_name(std::string_view tensor, const Box& box);
// Tensor and box; absent when it is no name of a piece.
std::optional<std::pair<std::string, Box>> parse_piece_name(std::string_view name);

}  // namespace bev
