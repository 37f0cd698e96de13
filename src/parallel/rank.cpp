#include "parallel/rank.h"

#include "base/trace.h"
#include "comm/traced_group.h"
#include "kernels/device.h"

namespace bev {

Rank::Rank(World& world, const Kernels& kernels, const RankOptions& options)
    : options_(options),
      world_(world),
      kernels_(kernels),
      device_(kernels.device.open({.threads = options.threads,
                                   .deterministic = options.deterministic,
                                   .cache_folder = options.cache_folder,
                                   .local_rank = options.local_rank,
                                   .limit_arch = options.limit_arch})),
      arena_(device_->memory()),
      inputs_(device_->memory()),
      host_memory_(kernels.device.pinned_memory()) {
  arena_.set_trace(options.trace);
  inputs_.set_trace(options.trace);
}

Rank::~Rank() = default;

Stream Rank::stream() const { return device_->stream(); }

std::unique_ptr<Arena> Rank::make_arena() {
  constexpr std::size_t kNoSpare = 0;
  return std::make_unique<Arena>(device_->memory(), 0, kNoSpare);
}

bool Rank::runs_ahead() const { return kernels_.device.capture != nullptr; }

const Mesh& Rank::mesh(const MeshShape& shape) {
  for (const auto& mesh : meshes_) {
    if (mesh->shape() == shape) return *mesh;
  }
  TracedGroupMaker groups(*device_, options_.trace);
  meshes_.push_back(std::make_unique<Mesh>(world_, shape, &groups));
  return *meshes_.back();
}

bool Rank::can_capture() const {
  bool traced = options_.trace != nullptr && options_.trace->recording();
  return options_.capture_steps && runs_ahead() && !traced;
}

}  // namespace bev
