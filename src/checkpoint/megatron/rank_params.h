// Which parameters a model-parallel rank of Megatron holds, in the order in which its modules
// define them. Its optimizers' buffers, and files of one rank, depend on this order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bridge/torch/pickle.h"
#include "checkpoint/megatron/foreign_tensor.h"
#include "models/config.h"

namespace bev {

// Sizes of the layout that wrote a checkpoint.
struct MegatronLayout {
  std::int64_t tp = 1, pp = 1, vpp = 1, ep = 1, etp = 1;
  // Uneven stages: layers of the first and last, -1: as many as the others.
  std::int64_t first_layers = -1, last_layers = -1;
  bool embedding_counts = false, loss_counts = false;  // as a layer of their stage
  bool listed = false;  // by --pipeline-model-parallel-layout, which is not read

  static MegatronLayout of_arguments(const PickleValue& args);
};

// A model-parallel rank, and which of its model chunks (vpp).
struct MegatronRank {
  std::int64_t tp = 0, pp = 0, chunk = 0, ep = 0, etp = 0;
};

// First layer and number of layers of a chunk.
struct LayerRange {
  std::int64_t begin = 0, count = 0;
};
LayerRange layers_of(const MegatronLayout& layout, const MegatronRank& rank, std::int64_t layers);

// How a parameter is divided over tensor-parallel ranks.
enum class MegatronCut : std::uint8_t { kWhole, kRows, kGatedRows, kColumns };
// By its name in Megatron's modules; `gated`: fc1 has rows of gate and up.
MegatronCut cut_of(std::string_view name, bool gated);
// Boxes of the global tensor that part `index` of `parts` holds, one after the other in its memory.
std::vector<Box> boxes_of_cut(MegatronCut cut, const Shape& global, std::int64_t parts,
                              std::int64_t index);

// A parameter as a rank holds it.
struct RankParam {
  std::string name;  // global: decoder.layers.LAYER..; an expert's: ..experts.experts.EXPERT..
  Shape global;
  std::vector<Box> boxes;
  bool expert = false;
  std::int64_t numel() const;
};

// Modules that differ in how they order and name parameters.
struct ModuleKind {
  bool fused_norms = true;      // Transformer Engine: norms belong to the linear layer after them
  bool grouped_experts = true;  // fc1 of all experts, then fc2 of all
};
std::vector<RankParam> rank_params(const ModelConfig& config, const MegatronLayout& layout,
                                   const MegatronRank& rank, ModuleKind kind);

// Adds elements `range` of the concatenated boxes, which lie from element `first` of a stored
// tensor on, as chunks of the global tensor.
void add_flat_chunks(const std::vector<Box>& boxes, Range range, const ForeignChunk& stored,
                     std::vector<ForeignChunk>& out);

}  // namespace bev
