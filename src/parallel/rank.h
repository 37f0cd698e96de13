// What a rank has whatever models it hosts: its device, the memory of it, and meshes over the
// world.
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
  int threads = 1;             // of this rank
  int local_rank = 0;          // on this machine
  bool deterministic = false;  // also where it costs speed
  bool record_steps = true;    // as CUDA graphs, where the device can
  std::string cache_folder;    // of choices that kernels make by measuring; "": none are kept
  Trace* trace = nullptr;      // of this rank; nullptr: nothing is recorded
};

class Rank {
 public:
  Rank(World& world, const Kernels& kernels, const RankOptions& options);
  ~Rank();

  const RankOptions& options() const { return options_; }
  const Kernels& kernels() const { return kernels_; }
  Stream stream() const;
  // Memory of what models and steps compute.
  Arena& arena() { return arena_; }
  // Memory of batches.
  Arena& inputs() { return inputs_; }
  // Memory of the host that the device reaches, for offloaded state of optimizers.
  Arena& host_memory() { return host_memory_; }
  // Models whose meshes have the same shape share one. Collective where the shape is new.
  const Mesh& mesh(const MeshShape& shape);
  // Whether the device runs behind the host, so that beginning a step early gains time.
  bool runs_ahead() const;
  // Whether work can be captured as a CUDA graph now: a trace shows every call.
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
