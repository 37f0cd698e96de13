// One rank's share of a save: what it writes, and the copy and the write themselves.
//
//   weights, moments --copy--> blocks --write--> shard_00003.safetensors
//                    must end before the next update      may take as long as it likes
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/staging.h"
#include "checkpoint/state_parts.h"
#include "checkpoint/storage.h"

namespace bev {

// A piece of a shard file and where its elements are.
struct SourcePiece {
  std::string name;
  Dtype dtype = Dtype::kF32;
  HeldBox box;
  StatePart part;
};

// In the order of the file: larger elements first, so that each is aligned.
std::vector<SourcePiece> pieces_to_write(Engine& engine, bool with_optimizer,
                                         std::int64_t least_elements);

class ShardSave {
 public:
  // Begins at once, on two threads of its own.
  ShardSave(Engine& engine, std::vector<SourcePiece> pieces, Storage& storage, StagingPool& pool,
            const std::string& path);
  // Waits for both.
  ~ShardSave();
  ShardSave(const ShardSave&) = delete;
  ShardSave& operator=(const ShardSave&) = delete;

  // Until then the pieces' memory must not change.
  void wait_copied();
  // Whether the file is on disk or has failed, after waiting for that at most so long.
  bool written(double seconds = 0) const;
  // Waits for the file to be on disk; throws what went wrong.
  ShardEntry result();

 private:
  struct Job;
  std::unique_ptr<Job> job_;
};

}  // namespace bev
