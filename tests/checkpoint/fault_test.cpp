// Saves that fail at any of their operations, and checkpoints that are corrupted afterwards.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/reader.h"
#include "checkpoint/step_folders.h"
#include "checkpoint/validation_state.h"
#include "tests/checkpoint/faulty_storage.h"
#include "tests/checkpoint/saved_run.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev::test {
namespace {

constexpr int kForever = std::numeric_limits<int>::max() / 2;

ModelConfig small_model() {
  ModelConfig model = tiny_gpt();
  model.num_layers = 2;
  return model;
}

SavedRun run_on(const TempFolder& folder, Storage* storage, std::int64_t last) {
  return {.model = small_model(),
          .layout = "tp2,dp2zero1",
          .last = last,
          .save = folder.path(),
          .storage = storage};
}

// Every complete step verifies, and the tracker names an existing one.
void expect_loadable(const std::string& folder, std::int64_t step) {
  EXPECT_EQ(latest_step(folder), step);
  for (std::int64_t complete : complete_steps(folder)) {
    CheckpointReader reader(step_folder(folder, complete));
    EXPECT_EQ(reader.verify(), std::vector<std::string>());
  }
}

int operations_of_a_save() {
  TempFolder folder;
  FaultyStorage storage(kForever, 0);
  EXPECT_EQ(train(run_on(folder, &storage, 2)).saved.problem, "");
  return storage.operations();
}

// Lets `count` operations fail, starting at each one in turn: a single failure, or a permanent one
// as after a crash.
void check_faults(int count) {
  int operations = operations_of_a_save();
  ASSERT_GT(operations, 20);
  TempFolder good;
  train(run_on(good, nullptr, 1));
  for (int first = 0; first < operations; ++first) {
    SCOPED_TRACE(first);
    TempFolder folder;
    std::filesystem::copy(good.path(), folder.path(), std::filesystem::copy_options::recursive);
    FaultyStorage storage(first, count);
    SaveOutcome saved = train(run_on(folder, &storage, 2)).saved;
    ASSERT_TRUE(storage.failed());
    EXPECT_NE(saved.problem.find("No space left on device"), std::string::npos) << saved.problem;
    // Only after the folder has its final name may the step exist, whether or not the tracker names
    // it.
    std::int64_t latest = latest_step(folder.path()).value_or(-1);
    EXPECT_TRUE(latest == 1 || latest == 2);
    expect_loadable(folder.path(), latest);
    // The next save succeeds and leaves nothing behind.
    EXPECT_EQ(train(run_on(folder, nullptr, 2)).saved.problem, "");
    expect_loadable(folder.path(), 2);
    EXPECT_EQ(list_directory(folder.path()),
              (std::vector<std::string>{"iter_0000001", "iter_0000002", kTrackerName}));
  }
}

TEST(SaveFaults, OneFailedOperationLosesNothing) { check_faults(1); }
TEST(SaveFaults, ADiskThatStaysFullLosesNothing) { check_faults(kForever); }

TEST(SaveFaults, AStepThatIsThereIsReplacedWhole) {
  TempFolder folder;
  SavedRun run = run_on(folder, nullptr, 2);
  train(run);
  NamedTensors before = saved_tensors(folder.path(), 2);
  run.layout = "dp3zero3";
  EXPECT_EQ(train(run).saved.problem, "");
  EXPECT_LE(largest_difference(before, saved_tensors(folder.path(), 2), 1e-6).value, 1e-9);
  EXPECT_EQ(list_directory(folder.path()),
            (std::vector<std::string>{"iter_0000002", kTrackerName}));
}

class Damage : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(train(run_on(folder_, nullptr, 2)).saved.problem, "");
    shard_ = join_path(step_folder(folder_.path(), 2), "shard_00001.safetensors");
  }
  // Loads with a layout in which every rank needs part of every shard.
  void expect_refused(const std::vector<std::string>& parts) {
    expect_error(ErrorKind::kInput, parts, [&] {
      train({.model = small_model(), .layout = "dp2", .first = 3, .load = folder_.path()});
    });
    CheckpointReader reader(step_folder(folder_.path(), 2));
    EXPECT_EQ(reader.verify().size(), 1u);
  }

  TempFolder folder_;
  std::string shard_;
};

TEST_F(Damage, AMissingShardIsNamedWithItsTensor) {
  std::filesystem::remove(shard_);
  expect_refused({"shard_00001.safetensors", "cannot read 'embedding.word_embeddings.weight'"});
}

TEST_F(Damage, ATruncatedShardIsNamedWithItsTensor) {
  std::filesystem::resize_file(shard_, std::filesystem::file_size(shard_) - 1);
  expect_refused({"shard_00001.safetensors", "truncated", "embedding.word_embeddings.weight"});
}

TEST_F(Damage, AFlippedBitIsFoundAndItsTensorNamed) {
  std::string bytes = read_file(shard_);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(shard_, bytes);
  expect_refused({"shard_00001.safetensors", "corrupt", "does not have the checksum"});
}

TEST_F(Damage, AFlippedBitOfTheHeaderIsFound) {
  std::string bytes = read_file(shard_);
  std::size_t at = bytes.find("F64");
  bytes[at + 1] = '3';
  write_file(shard_, bytes);
  expect_refused({"shard_00001.safetensors", "corrupt", "the header"});
}

// A file of several blocks.
TEST(DamagedBlock, NamesTheTensorsInItAndNoOthers) {
  TempFolder folder;
  SavedRun run{.last = 1, .save = folder.path()};
  run.model.num_layers = 2;
  run.model.ffn_hidden_size = 12288;
  ASSERT_EQ(train(run).saved.problem, "");
  CheckpointReader reader(step_folder(folder.path(), 1));
  const ShardEntry& entry = reader.manifest().shards.at(0);
  ASSERT_GT(entry.checksums.size(), 3u);
  std::string path = join_path(reader.folder(), entry.file), bytes = read_file(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(path, bytes);
  std::vector<std::string> problems = reader.verify();
  ASSERT_EQ(problems.size(), 1u);
  auto name_of_piece = [](const std::string& piece) { return parse_piece_name(piece)->first; };
  EXPECT_NE(problems[0].find(name_of_piece(entry.pieces.back())), std::string::npos) << problems[0];
  EXPECT_EQ(problems[0].find(name_of_piece(entry.pieces.front())), std::string::npos);
  // Tensors outside the block are still readable.
  std::string intact = name_of_piece(entry.pieces.front());
  const Shape& shape = reader.find(intact)->shape;
  std::vector<double> values(static_cast<std::size_t>(shape.numel()));
  reader.read(intact, whole_box(shape), Dtype::kF64, values.data());
}

TEST_F(Damage, AnotherModelIsRefusedWithAllThatDiffers) {
  ModelConfig other = small_model();
  other.num_layers = 3;
  other.ffn_hidden_size = 44;
  expect_error(ErrorKind::kInput,
               {"does not fit this run",
                "decoder.layers.0.mlp.linear_fc1.weight is [44, 24], the "
                "checkpoint's is [40, 24]",
                "more"},
               [&] { train({.model = other, .first = 3, .load = folder_.path()}); });
  other = small_model();
  other.num_layers = 1;
  expect_error(ErrorKind::kInput, {"decoder.layers.1", "not in this model"},
               [&] { train({.model = other, .first = 3, .load = folder_.path()}); });
}

TEST(Retention, OldStepsGoAsAsked) {
  std::vector<std::int64_t> steps = {10, 20, 30, 40, 50};
  using Steps = std::vector<std::int64_t>;
  EXPECT_EQ(steps_to_remove(steps, 50, {}), Steps());
  EXPECT_EQ(steps_to_remove(steps, 50, {.interval = 20}), (Steps{10, 30}));
  EXPECT_EQ(steps_to_remove(steps, 50, {.most_recent = 2}), (Steps{10, 20, 30}));
  EXPECT_EQ(steps_to_remove(steps, 50, {.most_recent = 1}), (Steps{10, 20, 30, 40}));
  EXPECT_EQ(steps_to_remove(steps, 50, {.interval = 20, .most_recent = 2}), (Steps{10, 30}));
  Steps best = {10, 50};
  EXPECT_EQ(steps_to_remove(steps, 50, {.best = 2}, best), (Steps{20, 30, 40}));
  EXPECT_EQ(steps_to_remove(steps, 50, {.interval = 20, .best = 2}, best), (Steps{30}));
  // Steps of an earlier, longer run are not older.
  EXPECT_EQ(steps_to_remove(steps, 30, {.most_recent = 1}), (Steps{10, 20}));
}

// Manifests of older programs know nothing about validation.
TEST(Retention, AManifestWithoutValidationIsRead) {
  TempFolder folder;
  train(run_on(folder, nullptr, 2));
  std::string path = join_path(step_folder(folder.path(), 2), "manifest.json");
  auto json = nlohmann::json::parse(read_file(path));
  for (const char* key :
       {"validated", "validation_loss", "best_validation_iteration", "best_validation_loss",
        "validations_not_improved", "best_steps", "best_step_losses"}) {
    EXPECT_EQ(json["state"].erase(key), 1u) << key;
  }
  EXPECT_EQ(parse_manifest(json.dump(), path).state.validation.best_iteration, 0);
  json["state"].erase("iteration");
  EXPECT_THROW(parse_manifest(json.dump(), path), Error);
}

TEST(Retention, BestStepsAreThoseOfTheLowestLosses) {
  ValidationState state;
  auto add = [&](std::int64_t iteration, double loss) {
    state.add(iteration, loss);
    state.keep_step(iteration, 2);
  };
  add(10, 3.0);
  add(20, 5.0);
  add(30, 4.0);
  add(40, NAN);
  EXPECT_EQ(state.best_steps, (std::vector<std::int64_t>{10, 30}));
  EXPECT_EQ(state.best_iteration, 10);
  EXPECT_EQ(state.not_improved, 3);
  add(30, 2.0);  // again, after going back
  EXPECT_EQ(state.best_steps, (std::vector<std::int64_t>{30, 10}));
  EXPECT_EQ(state.not_improved, 0);
  state.validated = false;
  state.keep_step(50, 1);
  EXPECT_EQ(state.best_steps, (std::vector<std::int64_t>{30}));
}

}  // namespace
}  // namespace bev::test
