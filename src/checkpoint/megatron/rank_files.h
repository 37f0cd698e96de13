// Megatron's `torch` format: one file for each model-parallel rank, with its tensors under the
// names of its own modules.
//   mp_rank_00[_000][_000]/model_optim_rng.pt     ranks of tp, of pp if pp > 1, of ep if ep > 1
//   mp_rank_00[_000][_000]/distrib_optim.pt       state of the distributed optimizer
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "bridge/torch/torch_archive.h"
#include "checkpoint/megatron/foreign_tensor.h"
#include "checkpoint/megatron/rank_params.h"
#include "checkpoint/piece.h"

namespace bev {

class RankFiles final : public PieceFiles {
 public:
  // Opens the files of all ranks; throws Error(kInput) if one is missing or damaged.
  explicit RankFiles(const std::string& folder);

  struct File {
    std::string name;  // below the folder
    std::uint64_t bytes = 0;
  };
  const std::vector<File>& files() const { return files_; }

  // A rank: what its model file has, and its distrib_optim.pt, if there is one.
  struct RankFile {
    MegatronRank rank;
    std::size_t model = 0;  // index of a file
    std::optional<std::size_t> optimizer = {};
  };
  const std::vector<RankFile>& ranks() const { return ranks_; }
  const MegatronLayout& layout() const { return layout_; }
  const PickleValue& root(std::size_t file) const { return archives_[file]->root(); }
  const TorchArchive& archive(std::size_t file) const { return *archives_[file]; }

  // A tensor of a file; chunks refer to it by `key` once it was added.
  struct Added {
    std::vector<std::int64_t> shape;
    Dtype dtype = Dtype::kF32;
    std::string key;
  };
  Added add(std::size_t file, const PickleValue& value, const std::string& name);

  std::span<const std::byte> open(const Piece& piece, const std::string& tensor, Dtype dtype,
                                  std::int64_t elements) override;
  void check(const Piece&, std::span<const std::byte>) override {}
  std::vector<std::string> verify() override;

 private:
  std::size_t open_file(const std::string& folder, const std::string& name);
  void open_ranks(const std::string& folder);

  std::string folder_;
  std::vector<File> files_;
  std::vector<std::unique_ptr<MappedFile>> mapped_;
  std::vector<std::unique_ptr<TorchArchive>> archives_;
  std::vector<RankFile> ranks_;
  MegatronLayout layout_;
  std::vector<TorchTensor> tensors_;
};

// Weights of all ranks under global names, and the state of their optimizers under
// optimizer.state.NAME; what cannot be read of the latter is left out and listed in `ignored`.
ForeignTensors tensors_of_ranks(RankFiles& files, bool gated, std::vector<std::string>& ignored);

}  // namespace bev
