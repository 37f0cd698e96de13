// Reads global tensors, or any box of them, from the folder of one step. Only the bytes that are
// asked for are read, and the blocks that they lie in are checked first. Any number of threads may
// read at once.
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
  // A folder with a manifest; Error(kInput) when that is missing or broken. Shards are opened when
  // they are first needed.
  explicit CheckpointReader(const std::string& folder);
  // With a manifest that was checked, whose shards lie in the folder.
  CheckpointReader(const std::string& folder, Manifest manifest);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  // nullptr when there is none.
  const GlobalTensor* find(std::string_view name) const;

  // The box, row by row, converted to `dtype`. Error(kInput) naming the file and the tensor when a
  // shard is missing, truncated or corrupt.
  void read(const std::string& name, const Box& box, Dtype dtype, void* out);

  // The box where it lies in a shard, checked, if it lies there in one piece; otherwise empty.
  std::span<const std::byte> stored(const std::string& name, const Box& box);
  // Which shards hold elements of the box, added to `out`, by their place in the manifest.
  void add_shards(const std::string& name, const Box& box, std::vector<bool>& out) const;

  // Checks every byte of every shard, whatever was read before. Returns what is wrong, each with
  // its file and the tensors it concerns; empty: all is well.
  std::vector<std::string> verify();

 private:
  struct Shard;
  struct Opening;
  struct Piece {
    std::string key;  // in the shard
    Box box;
    std::size_t shard = 0;
  };
  Shard& open(std::size_t index, const std::string& tensor);
  // The piece's bytes, and the shard that has them.
  std::pair<Shard&, std::span<const std::byte>> open(const Piece& piece, const std::string& tensor);

  std::string folder_;
  Manifest manifest_;
  std::map<std::string, std::vector<Piece>, std::less<>> pieces_;  // by tensor
  std::unique_ptr<Opening> opening_;
  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace bev
