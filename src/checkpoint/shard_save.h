// One rank's part of a save: which pieces it writes, and their copy and write.
//
//   weights, moments --copy--> blocks --write--> shard_00003.safetensors
//                    ends before      runs in the
//                    the next update  background
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/owned_state.h"
#include "checkpoint/staging.h"
#include "checkpoint/storage.h"

namespace bev {

// A piece of a shard file and the location of its elements.
struct SourcePiece {
  std::string name;
  Dtype dtype = Dtype::kF32;
  HeldBox box;
  StatePart part;
};

// In file order: larger element sizes first, so that every piece is aligned.
std::vector<SourcePiece> pieces_to_write(Engine& engine, bool with_optimizer,
                                         std::int64_t least_elements);

class ShardSave {
 public:
  // Starts immediately, on two threads of its own.
  ShardSave(Engine& engine, std::vector<SourcePiece> pieces, Storage& storage, StagingPool& pool,
            const std::string& path);
  // Waits for both threads.
  ~ShardSave();
  ShardSave(const ShardSave&) = delete;
  ShardSave& operator=(const ShardSave&) = delete;

  // Blocks until the pieces are copied; before that, their memory must not change.
  void wait_copied();
  // True if the file is on disk or has failed; waits at most `seconds`.
  bool written(double seconds = 0) const;
  // Waits until the file is on disk; rethrows errors.
  ShardEntry result();

 private:
  struct Job;
  std::unique_ptr<Job> job_;
};

}  // namespace bev
