// Reads global tensors, or boxes of them (resharding), from a step's folder. Only the requested
// bytes are read, and the blocks that contain them are verified first. Thread safe.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"

namespace bev {

class CheckpointReader {
 public:
  // Opens a folder with a manifest; throws Error(kInput) if it is missing or invalid. Shards are
  // opened on first use.
  explicit CheckpointReader(const std::string& folder);
  // With a checked manifest, whose shards are in the folder.
  CheckpointReader(const std::string& folder, Manifest manifest);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  // nullptr if there is none.
  const GlobalTensor* find(std::string_view name) const;

  // Reads the box in row-major order, converted to `dtype`. Throws Error(kInput) naming file and
  // tensor if a shard is missing, truncated or corrupt.
  void read(const std::string& name, const Box& box, Dtype dtype, void* out);

  // Verified bytes of the box in the memory-mapped shard, if it is stored contiguously; otherwise
  // empty.
  std::span<const std::byte> stored(const std::string& name, const Box& box);
  // Sets out[i] for each shard i of the manifest that holds elements of the box.
  void add_shards(const std::string& name, const Box& box, std::vector<bool>& out) const;

  // Verifies every byte of every shard, whatever was read before. Returns the problems with file
  // and affected tensors; empty: none.
  std::vector<std::string> verify();

 private:
  struct Shard;
  struct Opening;
  struct Piece {
    std::string key;  // name in the shard
    Box box;
    std::size_t shard = 0;
  };
  Shard& open(std::size_t index, const std::string& tensor);
  // The shard that holds the piece, and the piece's bytes.
  std::pair<Shard&, std::span<const std::byte>> open(const Piece& piece, const std::string& tensor);

  std::string folder_;
  Manifest manifest_;
  std::map<std::string, std::vector<Piece>, std::less<>> pieces_;  // by tensor
  std::unique_ptr<Opening> opening_;
  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace bev
