#include "comm/mesh.h"

#include <algorithm>

#include "base/error.h"

namespace bev {

MeshCoordinate coordinate_of(const MeshShape& shape, std::int64_t rank) {
  MeshCoordinate at;
  at.tp = rank % shape.tp;
  rank /= shape.tp;
  at.cp = rank % shape.cp;
  rank /= shape.cp;
  at.dp = rank % shape.dp;
  at.pp = rank / shape.dp;
  return at;
}

std::int64_t rank_of(const MeshShape& shape, const MeshCoordinate& at) {
  return at.tp + shape.tp * (at.cp + shape.cp * (at.dp + shape.dp * at.pp));
}

std::vector<int> group_members(const MeshShape& shape, std::int64_t rank,
                               const std::vector<Axis>& axes) {
  auto free = [&](Axis axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); };
  MeshCoordinate at = coordinate_of(shape, rank);
  std::vector<int> members;
  for (std::int64_t other = 0; other < shape.size(); ++other) {
    MeshCoordinate to = coordinate_of(shape, other);
    bool same = (free(Axis::kTp) || to.tp == at.tp) && (free(Axis::kCp) || to.cp == at.cp) &&
                (free(Axis::kDp) || to.dp == at.dp) && (free(Axis::kPp) || to.pp == at.pp);
    if (same) members.push_back(static_cast<int>(other));
  }
  return members;
}

Mesh::Mesh(World& world, const MeshShape& shape)
    : shape_(shape), at_(coordinate_of(shape, world.rank())) {
  BEV_CHECK(shape.size() == world.size(), ErrorKind::kConfig, "mesh: tp ", shape.tp, " x cp ",
            shape.cp, " x dp ", shape.dp, " x pp ", shape.pp, " needs ", shape.size(),
            " ranks, the world has ", world.size());
  auto group = [&](std::vector<Axis> axes) {
    return world.make_group(group_members(shape, world.rank(), axes));
  };
  tp_ = group({Axis::kTp});
  cp_ = group({Axis::kCp});
  dp_ = group({Axis::kDp});
  pp_ = group({Axis::kPp});
  grads_ = group({Axis::kCp, Axis::kDp});
  world_ = group({Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp});
  std::vector<int> ends = group_members(shape, world.rank(), {Axis::kPp});
  ends = ends.size() > 1 ? std::vector<int>{ends.front(), ends.back()} : ends;
  bool at_end = at_.pp == 0 || at_.pp == shape.pp - 1;
  embedding_ = at_end ? world.make_group(ends) : make_single_group(world.rank());
}

}  // namespace bev
