// Folders of torch.distributed.checkpoint: `.metadata`, a pickle that says which part of which
// tensor lies where, and files `__0_1.distcp` of archives one after the other, each with one tensor
// or one object.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "bridge/torch/torch_archive.h"
#include "checkpoint/megatron/foreign_tensor.h"
#include "checkpoint/piece.h"

namespace bev {

inline constexpr char kDistributedMetadata[] = ".metadata";

class DistributedFiles final : public PieceFiles {
 public:
  // Reads the metadata; throws Error(kInput) if it is damaged, a file is missing or truncated, or
  // the parts of a tensor do not cover it.
  explicit DistributedFiles(const std::string& folder);

  struct File {
    std::string name;
    std::uint64_t bytes = 0;
  };
  const std::vector<File>& files() const { return files_; }
  // Tensors of the types that we read; a chunk's key is a number of a place.
  const ForeignTensors& tensors() const { return tensors_; }
  // Names of the others, each with its type.
  const std::map<std::string, std::string>& unread() const { return unread_; }
  // Names of objects, which are no tensors.
  std::vector<std::string> objects() const;
  // An object, which was saved by torch.save; null if there is none.
  std::unique_ptr<TorchArchive> object(const std::string& name);

  std::span<const std::byte> open(const Piece& piece, const std::string& tensor, Dtype dtype,
                                  std::int64_t elements) override;
  void check(const Piece&, std::span<const std::byte>) override {}
  std::vector<std::string> verify() override;

 private:
  struct Place {
    std::size_t file = 0;
    std::uint64_t at = 0, bytes = 0;
    std::string name;  // of tensor or object
  };
  std::span<const std::byte> mapped(const Place& place);
  void add_place(const PickleValue& index, const PickleValue& info);
  void add_tensor(const std::string& name, const PickleValue& tensor);
  std::string where(const Place& place) const;

  std::string folder_;
  std::vector<File> files_;
  std::map<std::string, std::size_t> file_of_;
  std::vector<Place> places_;
  std::map<std::pair<std::string, std::vector<std::int64_t>>, std::size_t> place_of_;
  ForeignTensors tensors_;
  std::map<std::string, std::string> unread_;
  std::map<std::string, std::size_t> objects_;
  struct Mappings;
  std::shared_ptr<Mappings> mappings_;
};

}  // namespace bev
