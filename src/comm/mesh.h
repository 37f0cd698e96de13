// Device mesh: the immutable grid of ranks with the dense axes tp, cp, dp, pp, the expert axes etp,
// ep, edp over the same ranks, and the groups that result for each rank.
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
  std::int64_t etp = 1, ep = 1;  // edp follows from the size of a stage
  bool dp_outermost = false;     // rank order tp, cp, pp, dp instead of tp, cp, dp, pp

  std::int64_t kv_share = 1;      // adjacent tp ranks that share a key-value head
  std::int64_t cp_inner = 1;      // adjacent cp ranks that exchange heads (Ulysses); others: ring
  std::int64_t dp_instances = 1;  // replicas of the sharded state among dp x cp ranks (HSDP)
  std::vector<std::int64_t> embedding_stages = {};  // pp ranks that hold the word embeddings
  // Dynamic context parallelism: blocks of 2, 4, .. adjacent dp ranks share sequences, so that no
  // rank has more tokens than this in a micro-batch; 0: off.
  std::int64_t shared_tokens = 0;

  std::int64_t size() const { return tp * cp * dp * pp; }
  std::int64_t edp() const { return tp * cp * dp / (etp * ep); }
  // Ranks of edp that shard one replica of the experts: there are dp_instances replicas if that
  // divides edp, else one.
  std::int64_t expert_shards() const {
    return edp() % dp_instances == 0 ? edp() / dp_instances : edp();
  }
  bool operator==(const MeshShape&) const = default;
};

// Coordinates of a rank in both grids; pp is common to both.
struct MeshCoordinate {
  std::int64_t tp = 0, cp = 0, dp = 0, pp = 0;
  std::int64_t etp = 0, ep = 0, edp = 0;
};

// The leftmost axis varies fastest: rank = tp + tp_size * (cp + cp_size * (dp + dp_size * pp)), and
// likewise etp, ep, edp, pp.
MeshCoordinate coordinate_of(const MeshShape& shape, std::int64_t rank);
// Rank at the dense coordinates.
std::int64_t rank_of(const MeshShape& shape, const MeshCoordinate& at);
// Ranks that differ from `rank` only in the given axes, in rank order. The axes must be of one
// grid.
std::vector<int> group_members(const MeshShape& shape, std::int64_t rank,
                               const std::vector<Axis>& axes);

enum class MeshGroup : std::uint8_t {
  kTp,
  kCp,
  kDp,
  kPp,
  kGrads,      // dp x cp: all-reduce of dense gradients
  kShards,     // subset of kGrads that shards parameters, gradients or optimizer state
  kReplicas,   // ranks that hold the same shard
  kKv,         // subset of tp that shares key-value heads
  kCpInner,    // subset of cp that exchanges heads (all-to-all)
  kCpOuter,    // subset of cp that passes keys and values (ring)
  kEmbedding,  // pp ranks that hold the embedding weight; any other rank is alone
  kEtp,
  kEp,
  kEdp,             // all-reduce of expert gradients
  kExperts,         // etp x ep: holds every expert once
  kExpertShards,    // kShards of edp
  kExpertReplicas,  // kReplicas of edp
  kWorld,
  kSelf,  // this rank alone
};
inline constexpr int kMeshGroupCount = 19;
std::string_view name_of(MeshGroup group);
// World ranks of the group that contains `rank`.
std::vector<int> members_of(const MeshShape& shape, std::int64_t rank, MeshGroup group);
// The block of so many adjacent dp ranks, a power of two, with this rank.
std::vector<int> sequence_block_of(const MeshShape& shape, std::int64_t rank, std::int64_t ranks);

class Mesh;
// Which part of a parameter a rank holds.
ParamPart part_of(const Split& split, const MeshShape& shape, const MeshCoordinate& at);
ParamPart part_of(const Split& split, const Mesh& mesh);

class Mesh {
 public:
  // Every rank constructs it with the same shape, whose size is the world's. Collectives work on
  // the memory of `device`; null: host memory.
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
  // With MeshShape::shared_tokens: the block of 2^power dp ranks, of which there are whole ones.
  Group& sequence_block(int power) const {
    return *sequence_blocks_[static_cast<std::size_t>(power)];
  }
  Activity& activity() const { return activity_; }
  // True if Group::capturable() holds for the groups of all ranks. Collective call.
  bool capturable() const;

 private:
  MeshShape shape_;
  MeshCoordinate at_;
  Activity& activity_;
  std::array<std::unique_ptr<Group>, kMeshGroupCount> groups_;
  std::vector<std::unique_ptr<Group>> sequence_blocks_;
};

}  // namespace bev
