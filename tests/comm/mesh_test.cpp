#include "comm/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/support/expect_error.h"

namespace bev {
namespace {

using Groups = std::set<std::vector<int>>;

Groups groups_of(const MeshShape& shape, const std::vector<Axis>& axes) {
  Groups groups;
  for (std::int64_t rank = 0; rank < shape.size(); ++rank) {
    groups.insert(group_members(shape, rank, axes));
  }
  return groups;
}

// The example in Megatron's parallel_state.py: 16 ranks, tp 2, pp 4.
TEST(Mesh, HasMegatronsGroups) {
  MeshShape shape{2, 1, 2, 4};
  EXPECT_EQ(groups_of(shape, {Axis::kTp}),
            (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
  EXPECT_EQ(groups_of(shape, {Axis::kDp}),
            (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(groups_of(shape, {Axis::kPp}),
            (Groups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
  EXPECT_EQ(groups_of(shape, {Axis::kCp}).size(), 16u);
}

// Order tp-cp-dp-pp with all axes: 16 ranks of 2 each.
TEST(Mesh, HasMegatronsGroupsWithContextParallelism) {
  MeshShape shape{2, 2, 2, 2};
  EXPECT_EQ(groups_of(shape, {Axis::kCp}),
            (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(groups_of(shape, {Axis::kDp}),
            (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}, {8, 12}, {9, 13}, {10, 14}, {11, 15}}));
  EXPECT_EQ(groups_of(shape, {Axis::kCp, Axis::kDp}),
            (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}}));
}

TEST(Mesh, CoordinatesAndRanksAreInverse) {
  for (MeshShape shape : {MeshShape{1, 1, 1, 1}, {2, 3, 4, 5}, {3, 1, 2, 1}, {1, 5, 1, 2}}) {
    std::set<std::array<std::int64_t, 4>> seen;
    for (std::int64_t rank = 0; rank < shape.size(); ++rank) {
      MeshCoordinate at = coordinate_of(shape, rank);
      EXPECT_EQ(rank_of(shape, at), rank);
      EXPECT_TRUE(at.tp < shape.tp && at.cp < shape.cp && at.dp < shape.dp && at.pp < shape.pp);
      seen.insert({at.tp, at.cp, at.dp, at.pp});
    }
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), shape.size());
  }
}

TEST(Mesh, EveryAxisCutsTheWorldIntoGroupsOfItsSize) {
  MeshShape shape{2, 3, 2, 2};
  struct Row {
    std::vector<Axis> axes;
    std::size_t size;
  };
  for (const Row& row : {Row{{Axis::kTp}, 2}, {{Axis::kCp}, 3}, {{Axis::kDp, Axis::kCp}, 6}}) {
    std::vector<int> all;
    for (const std::vector<int>& group : groups_of(shape, row.axes)) {
      EXPECT_EQ(group.size(), row.size);
      all.insert(all.end(), group.begin(), group.end());
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all.size(), 24u);
    EXPECT_TRUE(std::adjacent_find(all.begin(), all.end()) == all.end());
  }
}

// The expert axes divide the ranks of a pipeline stage, for either order of the axes and any etp x
// ep.
TEST(Mesh, ExpertAxesCutEveryStageIntoGroupsOfTheirSize) {
  for (bool dp_outermost : {false, true}) {
    MeshShape shape{1, 3, 4, 2};
    shape.etp = 2;
    shape.ep = 3;
    shape.dp_outermost = dp_outermost;
    for (auto [axis, size] : {std::pair{Axis::kEtp, 2u}, {Axis::kEp, 3u}, {Axis::kEdp, 2u}}) {
      std::multiset<int> all;
      for (const std::vector<int>& group : groups_of(shape, {axis})) {
        EXPECT_EQ(group.size(), size);
        all.insert(group.begin(), group.end());
        for (int member : group) {
          EXPECT_EQ(coordinate_of(shape, member).pp, coordinate_of(shape, group.front()).pp);
        }
      }
      EXPECT_EQ(all.size(), 24u);
    }
  }
}

TEST(Mesh, GroupsOfARunningMeshCarryTheirMembers) {
  MeshShape shape{2, 1, 2, 3};
  shape.embedding_stages = {0, 2};
  run_thread_ranks(12, {20.0}, [&](World& world) {
    Mesh mesh(world, shape);
    auto list = [](const Group& group) {
      return std::vector<int>(group.members().begin(), group.members().end());
    };
    EXPECT_EQ(list(mesh.tp()), group_members(shape, world.rank(), {Axis::kTp}));
    EXPECT_EQ(list(mesh.pp()), group_members(shape, world.rank(), {Axis::kPp}));
    EXPECT_EQ(mesh.tp().rank(), mesh.at().tp);
    EXPECT_EQ(mesh.dp().rank(), mesh.at().dp);
    EXPECT_EQ(mesh.pp().rank(), mesh.at().pp);
    EXPECT_EQ(mesh.grads().size(), 2);
    EXPECT_EQ(mesh.world().size(), 12);
    // Ranks that hold the embedding weight; any other rank is alone.
    std::vector<int> stages = list(mesh.pp());
    EXPECT_EQ(list(mesh.embedding()), mesh.at().pp == 1
                                          ? std::vector<int>{world.rank()}
                                          : (std::vector<int>{stages.front(), stages.back()}));
    // The groups are functional.
    std::int32_t one = 1;
    View view{&one, Dtype::kI32, {1}};
    mesh.embedding().all_reduce(view, Reduction::kSum, "embedding").wait();
    EXPECT_EQ(one, mesh.at().pp == 1 ? 1 : 2);
    one = 1;
    mesh.world().all_reduce(view, Reduction::kSum, "world").wait();
    EXPECT_EQ(one, 12);
  });
}

TEST(Mesh, OfTheWrongSizeIsAnErrorWithTheNumbers) {
  expect_error(ErrorKind::kConfig, {"tp 2", "pp 3", "6 ranks", "world has 4"}, [] {
    run_thread_ranks(4, {20.0}, [](World& world) { Mesh mesh(world, {2, 1, 1, 3}); });
  });
}

}  // namespace
}  // namespace bev
