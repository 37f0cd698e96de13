// Reads global tensors, or boxes of them (resharding), from a step's folder, which may also be one
// of Megatron's. Only the requested bytes are read, and of our own folders the blocks that contain
// them are verified first. Thread safe.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/piece.h"

namespace bev {

// What is particular to a checkpoint of another program.
struct ForeignNotes {
  std::string format;                // "Megatron torch_dist"
  std::string layout;                // "tp 2, pp 4", as the run that wrote it had
  std::vector<std::string> ignored;  // what it holds and a run here does not take, each with why
  std::string unreadable;            // why there is no configuration; "": there is one
};

class CheckpointReader {
 public:
  // Opens a folder with a manifest, or one of Megatron's; throws Error(kInput) if it is neither, or
  // is damaged. Shards are opened on first use.
  explicit CheckpointReader(const std::string& folder);
  // With a checked manifest, whose shards are in the folder.
  CheckpointReader(const std::string& folder, Manifest manifest);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const std::string& folder() const { return folder_; }
  // For another program's folder what ours would say; its shards are files without pieces.
  const Manifest& manifest() const { return manifest_; }
  // nullptr: the folder is our own.
  const ForeignNotes* foreign() const { return foreign_.get(); }
  // nullptr if there is none.
  const GlobalTensor* find(std::string_view name) const;

  // Reads the box in row-major order, converted to `dtype`. Throws Error(kInput) naming file and
  // tensor if a shard is missing, truncated or corrupt.
  void read(const std::string& name, const Box& box, Dtype dtype, void* out);

  // Verified bytes of the box in the memory-mapped shard, if it is stored contiguously; otherwise
  // empty.
  std::span<const std::byte> stored(const std::string& name, const Box& box);
  // Drops what was read of the box from this process's resident memory; it can be read again.
  void forget(const std::string& name, const Box& box);
  // Sets out[i] for each shard i of the manifest that holds elements of the box.
  void add_shards(const std::string& name, const Box& box, std::vector<bool>& out) const;

  // Verifies every byte of every shard, whatever was read before. Returns the problems with file
  // and affected tensors; empty: none.
  std::vector<std::string> verify();

 private:
  void open_own();

  std::string folder_;
  Manifest manifest_;
  std::unique_ptr<ForeignNotes> foreign_;
  PieceTable pieces_;
  std::unique_ptr<PieceFiles> files_;
};

}  // namespace bev
