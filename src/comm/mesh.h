// The immutable grid of ranks: dense axes tp, cp, dp, pp, leftmost fastest, and one group per axis.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/placement.h"
#include "comm/world.h"

namespace bev {

struct MeshShape {
  std::int64_t tp = 1, cp = 1, dp = 1, pp = 1;
  std::int64_t size() const { return tp * cp * dp * pp; }
};

struct MeshCoordinate {
  std::int64_t tp = 0, cp = 0, dp = 0, pp = 0;
};

// rank = tp + tp_size * (cp + cp_size * (dp + dp_size * pp)).
MeshCoordinate coordinate_of(const MeshShape& shape, std::int64_t rank);
std::int64_t rank_of(const MeshShape& shape, const MeshCoordinate& at);
// The ranks that differ from `rank` in the given axes only, in the order of those axes.
std::vector<int> group_members(const MeshShape& shape, std::int64_t rank,
                               const std::vector<Axis>& axes);

class Mesh {
 public:
  // Every rank of the world constructs it with the same shape, whose size is the world's.
  Mesh(World& world, const MeshShape& shape);

  const MeshShape& shape() const { return shape_; }
  const MeshCoordinate& at() const { return at_; }
  Group& tp() const { return *tp_; }
  Group& cp() const { return *cp_; }
  Group& dp() const { return *dp_; }
  Group& pp() const { return *pp_; }
  // dp x cp: over which gradients of dense parameters are summed.
  Group& grads() const { return *grads_; }
  // First and last pipeline stage: holders of a tied embedding (this rank alone on other stages).
  Group& embedding() const { return *embedding_; }
  Group& world() const { return *world_; }

 private:
  MeshShape shape_;
  MeshCoordinate at_;
  std::unique_ptr<Group> tp_, cp_, dp_, pp_, grads_, embedding_, world_;
};

}  // namespace bev
