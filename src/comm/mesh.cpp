#include "comm/mesh.h"

#include <algorithm>

#include "base/error.h"

namespace bev {

namespace {

std::int64_t take_digit(std::int64_t& rest, std::int64_t size) {
  std::int64_t digit = rest % size;
  rest /= size;
  return digit;
}

std::int64_t coordinate(const MeshCoordinate& at, Axis axis) {
  switch (axis) {
    case Axis::kTp:
      return at.tp;
    case Axis::kCp:
      return at.cp;
    case Axis::kDp:
      return at.dp;
    case Axis::kPp:
      return at.pp;
    case Axis::kEtp:
      return at.etp;
    case Axis::kEp:
      return at.ep;
    case Axis::kEdp:
      return at.edp;
  }
  return 0;
}

// A group is cut into blocks of `inner` adjacent members: block_of gives the block of `rank`,
// across_blocks the members at the same index of every block.
std::vector<int> block_of(const std::vector<int>& members, std::int64_t rank, std::int64_t inner) {
  auto index = std::find(members.begin(), members.end(), rank) - members.begin();
  auto begin = members.begin() + index / inner * inner;
  return {begin, begin + inner};
}
std::vector<int> across_blocks(const std::vector<int>& members, std::int64_t rank,
                               std::int64_t inner) {
  auto index = std::find(members.begin(), members.end(), rank) - members.begin();
  std::vector<int> out;
  for (auto i = index % inner; i < static_cast<std::int64_t>(members.size()); i += inner) {
    out.push_back(members[static_cast<std::size_t>(i)]);
  }
  return out;
}

void check_shape(const MeshShape& shape, int world_size) {
  BEV_CHECK(shape.size() == world_size, ErrorKind::kConfig, "mesh: tp ", shape.tp, " x cp ",
            shape.cp, " x dp ", shape.dp, " x pp ", shape.pp, " needs ", shape.size(),
            " ranks, the world has ", world_size);
  BEV_CHECK(shape.edp() * shape.etp * shape.ep == shape.tp * shape.cp * shape.dp,
            ErrorKind::kConfig, "mesh: etp ", shape.etp, " x ep ", shape.ep,
            " does not divide the ", shape.tp * shape.cp * shape.dp, " ranks of a pipeline stage");
  BEV_CHECK(shape.tp % shape.kv_share == 0 && shape.cp % shape.cp_inner == 0 &&
                shape.dp * shape.cp % shape.dp_instances == 0,
            ErrorKind::kConfig, "mesh: ", shape.kv_share, " of tp ", shape.tp, ", ", shape.cp_inner,
            " of cp ", shape.cp, ", ", shape.dp_instances, " of dp x cp ", shape.dp * shape.cp,
            ": parts must divide");
}

}  // namespace

MeshCoordinate coordinate_of(const MeshShape& shape, std::int64_t rank) {
  MeshCoordinate at;
  std::int64_t rest = rank;
  at.tp = take_digit(rest, shape.tp);
  at.cp = take_digit(rest, shape.cp);
  if (shape.dp_outermost) at.pp = take_digit(rest, shape.pp);
  at.dp = take_digit(rest, shape.dp);
  if (!shape.dp_outermost) at.pp = rest;
  // The expert axes enumerate the ranks of a pipeline stage, so both grids have the same stages.
  rest = at.tp + shape.tp * (at.cp + shape.cp * at.dp);
  at.etp = take_digit(rest, shape.etp);
  at.ep = take_digit(rest, shape.ep);
  at.edp = rest;
  return at;
}

std::int64_t rank_of(const MeshShape& shape, const MeshCoordinate& at) {
  std::int64_t outer = shape.dp_outermost ? at.pp + shape.pp * at.dp : at.dp + shape.dp * at.pp;
  return at.tp + shape.tp * (at.cp + shape.cp * outer);
}

std::vector<int> group_members(const MeshShape& shape, std::int64_t rank,
                               const std::vector<Axis>& axes) {
  bool expert = std::ranges::any_of(axes, [](Axis axis) { return axis > Axis::kPp; });
  std::vector<Axis> fixed = expert ? std::vector{Axis::kEtp, Axis::kEp, Axis::kEdp, Axis::kPp}
                                   : std::vector{Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp};
  std::erase_if(fixed, [&](Axis axis) { return std::ranges::find(axes, axis) != axes.end(); });
  MeshCoordinate at = coordinate_of(shape, rank);
  std::vector<int> members;
  for (std::int64_t other = 0; other < shape.size(); ++other) {
    MeshCoordinate to = coordinate_of(shape, other);
    bool same = std::ranges::all_of(
        fixed, [&](Axis axis) { return coordinate(to, axis) == coordinate(at, axis); });
    if (same) members.push_back(static_cast<int>(other));
  }
  return members;
}

std::string_view name_of(MeshGroup group) {
  constexpr std::array<std::string_view, kMeshGroupCount> kNames = {"tp",
                                                                    "cp",
                                                                    "dp",
                                                                    "pp",
                                                                    "dp x cp",
                                                                    "shards",
                                                                    "replicas",
                                                                    "kv",
                                                                    "cp inner",
                                                                    "cp outer",
                                                                    "embedding",
                                                                    "etp",
                                                                    "ep",
                                                                    "edp",
                                                                    "experts",
                                                                    "expert shards",
                                                                    "expert replicas",
                                                                    "world",
                                                                    "self"};
  return kNames[static_cast<std::size_t>(group)];
}

std::vector<int> members_of(const MeshShape& shape, std::int64_t rank, MeshGroup group) {
  auto members = [&](std::vector<Axis> axes) { return group_members(shape, rank, axes); };
  std::int64_t shard = shape.dp * shape.cp / shape.dp_instances;
  switch (group) {
    case MeshGroup::kTp:
      return members({Axis::kTp});
    case MeshGroup::kCp:
      return members({Axis::kCp});
    case MeshGroup::kDp:
      return members({Axis::kDp});
    case MeshGroup::kPp:
      return members({Axis::kPp});
    case MeshGroup::kGrads:
      return members({Axis::kCp, Axis::kDp});
    case MeshGroup::kShards:
      return block_of(members({Axis::kCp, Axis::kDp}), rank, shard);
    case MeshGroup::kReplicas:
      return across_blocks(members({Axis::kCp, Axis::kDp}), rank, shard);
    case MeshGroup::kKv:
      return block_of(members({Axis::kTp}), rank, shape.kv_share);
    case MeshGroup::kCpInner:
      return block_of(members({Axis::kCp}), rank, shape.cp_inner);
    case MeshGroup::kCpOuter:
      return across_blocks(members({Axis::kCp}), rank, shape.cp_inner);
    case MeshGroup::kEmbedding: {
      std::vector<int> stages = members({Axis::kPp}), holders;
      for (std::int64_t at : shape.embedding_stages) {
        holders.push_back(stages[static_cast<std::size_t>(at)]);
      }
      if (std::ranges::count(holders, rank) == 0) return {static_cast<int>(rank)};
      return holders;
    }
    case MeshGroup::kEtp:
      return members({Axis::kEtp});
    case MeshGroup::kEp:
      return members({Axis::kEp});
    case MeshGroup::kEdp:
      return members({Axis::kEdp});
    case MeshGroup::kExperts:
      return members({Axis::kEtp, Axis::kEp});
    case MeshGroup::kExpertShards:
      return block_of(members({Axis::kEdp}), rank, shape.expert_shards());
    case MeshGroup::kExpertReplicas:
      return across_blocks(members({Axis::kEdp}), rank, shape.expert_shards());
    case MeshGroup::kWorld:
      return members({Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp});
    case MeshGroup::kSelf:
      return {static_cast<int>(rank)};
  }
  return {};
}

std::vector<int> sequence_block_of(const MeshShape& shape, std::int64_t rank, std::int64_t ranks) {
  return block_of(group_members(shape, rank, {Axis::kDp}), rank, ranks);
}

ParamPart part_of(const Split& split, const MeshShape& shape, const MeshCoordinate& at) {
  if (split.of_experts()) return {shape.etp, at.etp, shape.ep, at.ep};
  return {shape.tp, at.tp};
}

ParamPart part_of(const Split& split, const Mesh& mesh) {
  return part_of(split, mesh.shape(), mesh.at());
}

Mesh::Mesh(World& world, const MeshShape& shape, GroupMaker* device)
    : shape_(shape), activity_(world.activity()) {
  check_shape(shape, world.size());
  at_ = coordinate_of(shape, world.rank());
  auto make = [&](const std::string& name, const std::vector<int>& members) {
    std::unique_ptr<Group> host = world.make_group(name, members);
    return device != nullptr ? device->make_group(std::move(host)) : std::move(host);
  };
  for (int i = 0; i < kMeshGroupCount; ++i) {
    auto group = static_cast<MeshGroup>(i);
    groups_[static_cast<std::size_t>(i)] =
        make(std::string(name_of(group)), members_of(shape, world.rank(), group));
  }
  for (std::int64_t ranks = 1; shape.shared_tokens > 0 && shape.dp % ranks == 0; ranks *= 2) {
    sequence_blocks_.push_back(make("sequence block of " + std::to_string(ranks),
                                    sequence_block_of(shape, world.rank(), ranks)));
  }
}

bool Mesh::capturable() const {
  std::int32_t not_here =
      std::ranges::all_of(groups_, [](const auto& g) { return g->capturable(); }) ? 0 : 1;
  world().host().all_reduce({&not_here, Dtype::kI32, {1}}, Reduction::kMax, "recordable").wait();
  return not_here == 0;
}

}  // namespace bev
