// The immutable grid of ranks: the dense axes tp, cp, dp, pp, the expert axes etp, ep, edp over the
// same ranks, and the groups that either gives each rank.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"
#include "comm/placement.h"
#include "comm/world.h"

namespace bev {

struct MeshShape {
  std::int64_t tp = 1, cp = 1, dp = 1, pp = 1;
  std::int64_t etp = 1, ep = 1;  // edp is what the ranks of a stage leave over
  bool dp_outermost = false;     // ranks count tp, cp, pp, dp instead of tp, cp, dp, pp

  std::int64_t kv_share = 1;      // neighbouring tp ranks that share a key-value head
  std::int64_t cp_inner = 1;      // neighbouring cp ranks that exchange heads; the rest form a ring
  std::int64_t dp_instances = 1;  // copies of what dp x cp ranks shard
  std::vector<std::int64_t> embedding_stages = {};  // ranks of pp that hold the word embeddings

  std::int64_t size() const { return tp * cp * dp * pp; }
  std::int64_t edp() const { return tp * cp * dp / (etp * ep); }
  // Ranks of edp that shard one copy of the experts: as many copies as the rest of the model has,
  // where they divide.
  std::int64_t expert_shards() const {
    return edp() % dp_instances == 0 ? edp() / dp_instances : edp();
  }
  bool operator==(const MeshShape&) const = default;
};

// pp is the same in both grids.
struct MeshCoordinate {
  std::int64_t tp = 0, cp = 0, dp = 0, pp = 0;
  std::int64_t etp = 0, ep = 0, edp = 0;
};

// The leftmost axis varies fastest: rank = tp + tp_size * (cp + cp_size * (dp + dp_size * pp)), and
// likewise etp, ep, edp, pp.
MeshCoordinate coordinate_of(const MeshShape& shape, std::int64_t rank);
// Of the dense coordinates.
std::int64_t rank_of(const MeshShape& shape, const MeshCoordinate& at);
// The ranks that differ from `rank` in the given axes only, in rank order. Axes of one grid.
std::vector<int> group_members(const MeshShape& shape, std::int64_t rank,
                               const std::vector<Axis>& axes);

enum class MeshGroup : std::uint8_t {
  kTp,
  kCp,
  kDp,
  kPp,
  kGrads,      // dp x cp: over which gradients of dense parameters are summed
  kShards,     // the part of it that shards parameters, gradients or optimizer state
  kReplicas,   // the holders of the same shard
  kKv,         // the part of tp that shares key-value heads
  kCpInner,    // the part of cp that exchanges heads
  kCpOuter,    // the part of cp that passes keys and values around
  kEmbedding,  // the ranks of pp that hold the embedding's table; others are alone
  kEtp,
  kEp,
  kEdp,             // over which gradients of experts are summed
  kExperts,         // etp x ep: has every expert once
  kExpertShards,    // as kShards, of edp
  kExpertReplicas,  // as kReplicas
  kWorld,
  kSelf,  // this rank alone
};
inline constexpr int kMeshGroupCount = 19;
std::string_view name_of(MeshGroup group);
// World ranks of the group that `rank` is in.
std::vector<int> members_of(const MeshShape& shape, std::int64_t rank, MeshGroup group);

class Mesh;
// What a rank has of a parameter.
ParamPart part_of(const Split& split, const MeshShape& shape, const MeshCoordinate& at);
ParamPart part_of(const Split& split, const Mesh& mesh);

class Mesh {
 public:
  // Every rank of the world constructs it with the same shape, whose size is the world's.
  // Collectives work on the memory of `device`; null: on the host's.
  Mesh(World& world, const MeshShape& shape, GroupMaker* device = nullptr);

  const MeshShape& shape() const { return shape_; }
  const MeshCoordinate& at() const { return at_; }
  Group& group(MeshGroup group) const { return *groups_[static_cast<std::size_t>(group)]; }
  Group& tp() const { return group(MeshGroup::kTp); }
  Group& cp() const { return group(MeshGroup::kCp); }
  Group& dp() const { return group(MeshGroup::kDp); }
  Group& pp() const { return group(MeshGroup::kPp); }
  Group& grads() const { return group(MeshGroup::kGrads); }
  Group& embedding() const { return group(MeshGroup::kEmbedding); }
  Group& world() const { return group(MeshGroup::kWorld); }
  Activity& activity() const { return activity_; }
  // Whether that holds for the groups of all ranks (comm/group.h). Collective.
  bool recordable() const;

 private:
  MeshShape shape_;
  MeshCoordinate at_;
  Activity& activity_;
  std::array<std::unique_ptr<Group>, kMeshGroupCount> groups_;
};

}  // namespace bev
