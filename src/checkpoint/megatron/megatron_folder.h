// A step's folder as Megatron writes it, in any of its formats, read as if it were ours:
//   torch_dist     .metadata, __0_0.distcp .., common.pt, metadata.json
//   fsdp_dtensor   .metadata, __0_0.distcp ..
//   torch          mp_rank_00[_000][_000]/model_optim_rng.pt, distrib_optim.pt
#pragma once

#include <memory>
#include <string>

#include "checkpoint/manifest.h"
#include "checkpoint/piece.h"
#include "checkpoint/reader.h"

namespace bev {

// Whether the folder has files of one of these formats, complete or not.
bool is_megatron_folder(const std::string& folder);

struct MegatronFolder {
  Manifest manifest;
  PieceTable pieces;
  std::unique_ptr<PieceFiles> files;
  ForeignNotes notes;
};
// Throws Error(kInput) if it is not complete, mixes formats, or is damaged. Tensors that the model
// of its arguments does not have keep their names.
MegatronFolder open_megatron(const std::string& folder);

}  // namespace bev
