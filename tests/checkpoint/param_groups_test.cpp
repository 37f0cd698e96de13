// Parameter groups and checkpoints: a run is resumed under another layout, and parameters may be
// frozen and unfrozen between two runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/reader.h"
#include "checkpoint/step_folders.h"
#include "tests/checkpoint/saved_run.h"
#include "tests/support/temp_folder.h"

namespace bev::test {
namespace {

const char* const kFrozen = "decoder.layers.1.mlp.linear_fc1.weight";

OptimConfig some_groups() {
  OptimConfig optim;
  optim.groups.head_lr_mult = 3;
  optim.groups.param_group = {"*_layernorm.*:lr-mult=0.1", "*.linear_fc2.*:wd-mult=4"};
  optim.groups.freeze = {"decoder.layers.1.mlp.*"};
  return optim;
}

SavedRun part_of_run(std::int64_t first, std::int64_t last, const OptimConfig& optim) {
  return {.model = tiny_llama(), .optim = optim, .first = first, .last = last};
}

Manifest manifest_of(const std::string& folder, std::int64_t iteration) {
  return CheckpointReader(step_folder(folder, iteration)).manifest();
}

TEST(CheckpointGroups, ARunGoesOnUnderAnotherLayout) {
  TempFolder folder;
  SavedRun whole = part_of_run(1, 6, some_groups());
  whole.save = folder.path("whole");
  SavedAnswer expected = train(whole);
  NamedTensors weights = saved_tensors(whole.save, 6);
  EXPECT_FALSE(weights.contains(std::string("optimizer.exp_avg/") + kFrozen));
  EXPECT_TRUE(weights.contains(kFrozen));
  for (const char* from : {"", "tp2sp,pp2", "dp2zero3"}) {
    SavedRun before = part_of_run(1, 3, some_groups());
    before.layout = from;
    before.save = folder.path(std::string("from-") + from);
    train(before);
    for (const char* to : {"", "pp2,dp2zero1", "tp2,dp2zero3"}) {
      SCOPED_TRACE(std::string(from) + " to " + to);
      SavedRun after = part_of_run(4, 6, some_groups());
      after.layout = to;
      after.load = before.save;
      after.save = folder.path(std::string("to-") + from + "-" + to);
      SavedAnswer answer = train(after);
      NamedTensors actual = saved_tensors(after.save, 6);
      if (std::string(from).empty() && std::string(to).empty()) {
        EXPECT_TRUE(actual == weights);
      }
      TensorDifference worst = largest_difference(weights, actual, 1e-6);
      EXPECT_LE(worst.value, 1e-9) << worst.name;
      EXPECT_NEAR(answer.losses.back(), expected.losses.back(), 1e-9);
    }
  }
}

TEST(CheckpointGroups, AFrozenParameterNeedsNoState) {
  TempFolder folder;
  SavedRun before = part_of_run(1, 3, {});
  before.save = folder.path("before");
  train(before);
  SavedRun after = part_of_run(4, 5, some_groups());
  after.load = before.save;
  after.save = folder.path("after");
  train(after);
  EXPECT_EQ(saved_tensors(after.save, 5)[kFrozen], saved_tensors(before.save, 3)[kFrozen]);
}

// The first update of Adam moves every element by the learning rate, independently of its gradient.
// An unfrozen parameter must do the same although the run has made updates before.
TEST(CheckpointGroups, AnUnfrozenParameterBeginsWithFreshMoments) {
  TempFolder folder;
  SavedRun frozen = part_of_run(1, 3, some_groups());
  frozen.save = folder.path("frozen");
  train(frozen);
  EXPECT_TRUE(manifest_of(frozen.save, 3).late_starts.empty());
  OptimConfig open = some_groups();
  open.groups.freeze.clear();
  open.groups.param_group.push_back("*:wd-mult=0");
  SavedRun first = part_of_run(4, 4, open);
  first.layout = "tp2,dp2zero1";
  first.load = frozen.save;
  first.save = folder.path("first");
  train(first);
  std::vector<double> old = saved_tensors(frozen.save, 3)[kFrozen];
  std::vector<double> moved = saved_tensors(first.save, 4)[kFrozen];
  for (std::size_t i = 0; i < old.size(); ++i) {
    EXPECT_NEAR(std::abs(moved[i] - old[i]), 1e-2, 1e-3);
  }
  std::map<std::string, std::int64_t> starts = manifest_of(first.save, 4).late_starts;
  EXPECT_EQ(starts.size(), 2u);
  EXPECT_EQ(starts[kFrozen], 3);
  // The update at which it began is part of the state.
  SavedRun rest = part_of_run(5, 6, open), whole = part_of_run(4, 6, open);
  rest.load = first.save;
  rest.save = folder.path("rest");
  whole.load = frozen.save;
  whole.save = folder.path("whole");
  train(rest);
  train(whole);
  TensorDifference worst =
      largest_difference(saved_tensors(whole.save, 6), saved_tensors(rest.save, 6), 1e-6);
  EXPECT_LE(worst.value, 1e-9) << worst.name;
  EXPECT_EQ(manifest_of(rest.save, 6).late_starts, starts);
  // Frozen again, it has no state.
  SavedRun again = part_of_run(7, 7, some_groups());
  again.load = rest.save;
  again.save = folder.path("again");
  train(again);
  EXPECT_TRUE(manifest_of(again.save, 7).late_starts.empty());
}

}  // namespace
}  // namespace bev::test
