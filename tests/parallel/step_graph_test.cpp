// What ranks agree on before they capture or replay a step. CUDA graphs themselves need a device:
// tests/backend_cuda, and bench/gpu_processes.sh for several ranks.
#include "parallel/step_graph.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "comm/world.h"
#include "tests/support/expect_error.h"

namespace bev::test {
namespace {

MicroBatch batch_of(std::int64_t tokens, std::int64_t samples = 1) {
  MicroBatch batch;
  batch.layout.tokens = tokens;
  batch.layout.sample_count = samples;
  batch.layout.sequences = {{0, tokens, tokens}};
  batch.layout.runs = {{0, static_cast<std::int32_t>(tokens), 0, 0}};
  batch.layout.expert_tokens = {tokens};
  return batch;
}

TEST(StepGraph, HasARecordingForEachKindOfMicroBatch) {
  auto kinds = [](std::size_t count, bool one_rank) {
    std::vector<MicroBatch> batches(count, batch_of(20));
    return shape_of(batches, 1, one_rank)->kinds;
  };
  EXPECT_EQ(kinds(1, true), 1);
  EXPECT_EQ(kinds(2, true), 2);
  EXPECT_EQ(kinds(5, true), 2);
  // Gradient reductions start in the last micro-batch.
  EXPECT_EQ(kinds(1, false), 1);
  EXPECT_EQ(kinds(2, false), 2);
  EXPECT_EQ(kinds(5, false), 3);
}

TEST(StepGraph, MicroBatchesThatDifferHaveNoShape) {
  EXPECT_EQ(shape_of({}, 1, true), nullptr);
  std::vector<MicroBatch> batches(2, batch_of(20));
  EXPECT_NE(shape_of(batches, 1, true), nullptr);
  auto without_shape = [&](const auto& change) {
    std::vector<MicroBatch> changed = batches;
    change(changed[1].layout);
    return shape_of(changed, 1, true) == nullptr;
  };
  EXPECT_TRUE(without_shape([](SequenceLayout& layout) { layout.tokens = 21; }));
  EXPECT_TRUE(without_shape([](SequenceLayout& layout) { layout.sample_count = 2; }));
  EXPECT_TRUE(without_shape([](SequenceLayout& layout) { layout.sequences[0].length = 40; }));
  EXPECT_TRUE(without_shape([](SequenceLayout& layout) { layout.runs[0].q_count = 40; }));
  EXPECT_TRUE(without_shape([](SequenceLayout& layout) { layout.expert_tokens[0] = 8; }));
  // One of them has a sequence of its own.
  batches[1].fields.push_back({{"source"}, FieldRows::kOwn, {}, batch_of(5).layout});
  EXPECT_EQ(shape_of(batches, 1, true), nullptr);
}

// The key that each rank derives from the shapes of all ranks in a step. 0: none.
std::vector<std::uint64_t> agreed(const std::vector<std::int64_t>& tokens) {
  std::vector<std::uint64_t> found(tokens.size(), 0);
  run_thread_ranks(static_cast<int>(tokens.size()), {20.0}, [&](World& world) {
    std::unique_ptr<Group> group = world.make_group("world", {0, 1, 2});
    auto rank = static_cast<std::size_t>(world.rank());
    std::vector<MicroBatch> batches(1, batch_of(tokens[rank]));
    std::unique_ptr<StepShape> shape = tokens[rank] > 0 ? shape_of(batches, 1, false) : nullptr;
    if (agree_on_shape(*group, shape.get())) found[rank] = shape->all_ranks;
  });
  return found;
}

TEST(StepGraph, RanksKnowAStepByTheShapesOfAll) {
  std::set<std::uint64_t> names;
  for (const std::vector<std::int64_t>& tokens : std::vector<std::vector<std::int64_t>>{
           {20, 20, 20}, {20, 20, 24}, {20, 24, 20}, {24, 20, 20}, {24, 24, 24}}) {
    std::vector<std::uint64_t> found = agreed(tokens);
    EXPECT_NE(found[0], 0u);
    EXPECT_EQ(found, std::vector<std::uint64_t>(3, found[0]));
    EXPECT_EQ(found, agreed(tokens));
    names.insert(found[0]);
  }
  EXPECT_EQ(names.size(), 5u);
}

TEST(StepGraph, ARankThatDoesNotRecordKeepsAllFromIt) {
  for (const std::vector<std::int64_t>& tokens :
       std::vector<std::vector<std::int64_t>>{{0, 20, 20}, {20, 20, 0}, {0, 0, 0}}) {
    EXPECT_EQ(agreed(tokens), std::vector<std::uint64_t>(3, 0));
  }
}

TEST(StepGraph, ARankThatDoesNotComeIsNamed) {
  expect_error(ErrorKind::kComm,
               {"all_gather of shape of a step", "rank 1 never came: it is in step 7, playback"},
               [] {
                 run_thread_ranks(2, {0.3}, [](World& world) {
                   std::unique_ptr<Group> group = world.make_group("world", {0, 1});
                   world.activity().set_step(7);
                   world.activity().set_action("playback", -1);
                   if (world.rank() == 0) agree_on_shape(*group, nullptr);
                   while (!world.aborted()) std::this_thread::yield();
                 });
               });
}

}  // namespace
}  // namespace bev::test
