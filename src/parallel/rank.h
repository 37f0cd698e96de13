// What a rank owns independently of its models: the device, the memory arenas, and the meshes over
// the world.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "kernels/kernels.h"
#include "tensor/arena.h"

namespace bev {

class Device;
class Trace;

struct RankOptions {
  int threads = 1;             // CPU threads of this rank
  int local_rank = 0;          // index on this machine
  bool deterministic = false;  // bitwise reproducible, at some cost of speed
  bool capture_steps = true;   // capture steps as CUDA graphs if the device can
  std::string cache_folder;    // cache of autotuned kernel choices; "": no cache
  int limit_arch = 0;          // GPU architecture to choose kernels for; 0: that of the GPU
  Trace* trace = nullptr;      // of this rank; nullptr: no trace
};

class Rank {
 public:
  Rank(World& world, const Kernels& kernels, const RankOptions& options);
  ~Rank();

  const RankOptions& options() const { return options_; }
  const Kernels& kernels() const { return kernels_; }
  Stream stream() const;
  // Device memory for models and activations.
  Arena& arena() { return arena_; }
  // Memory of input batches.
  Arena& inputs() { return inputs_; }
  // Pinned host memory for offloaded optimizer state.
  Arena& host_memory() { return host_memory_; }
  // Device memory apart from the other arenas, taken from the device as it is asked for.
  std::unique_ptr<Arena> make_arena();
  // Returns the mesh of this shape; models with equal shapes share it. Collective if the shape is
  // new.
  const Mesh& mesh(const MeshShape& shape);
  // Whether the device works asynchronously, so that enqueuing steps early saves time.
  bool runs_ahead() const;
  // Whether work can be captured as a CUDA graph now. While tracing it cannot, because a trace
  // records every kernel call.
  bool can_capture() const;

 private:
  RankOptions options_;
  World& world_;
  const Kernels& kernels_;
  std::unique_ptr<Device> device_;
  Arena arena_, inputs_, host_memory_;
  std::vector<std::unique_ptr<Mesh>> meshes_;
};

}  // namespace bev
