// Training goes on while a state is saved, and the state saved is that of the step it was begun
// after.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "backend/cpu/cpu_kernels.h"
#include "base/clock.h"
#include "checkpoint/saver.h"
#include "tests/checkpoint/saved_run.h"
#include "tests/support/temp_folder.h"

namespace bev::test {
namespace {

// A disk that takes its time for every write.
class SlowStorage final : public Storage {
 public:
  explicit SlowStorage(double seconds) : seconds_(seconds) {}
  std::unique_ptr<OutputFile> create(const std::string& path) override {
    return std::make_unique<File>(disk_->create(path), seconds_);
  }
  void make_folder(const std::string& path) override { disk_->make_folder(path); }
  void sync_folder(const std::string& path) override { disk_->sync_folder(path); }
  void rename(const std::string& from, const std::string& to) override { disk_->rename(from, to); }
  void exchange(const std::string& one, const std::string& other) override {
    disk_->exchange(one, other);
  }
  void remove_tree(const std::string& path) override { disk_->remove_tree(path); }

 private:
  class File final : public OutputFile {
   public:
    File(std::unique_ptr<OutputFile> file, double seconds)
        : file_(std::move(file)), seconds_(seconds) {}
    void write(std::span<const std::byte> bytes) override {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds_));
      file_->write(bytes);
    }
    void sync() override { file_->sync(); }

   private:
    std::unique_ptr<OutputFile> file_;
    double seconds_;
  };
  std::unique_ptr<Storage> disk_ = make_disk_storage();
  double seconds_;
};

// Several blocks of state.
ModelConfig wide_model() {
  ModelConfig model = tiny_gpt();
  model.num_layers = 2;
  model.hidden_size = 96;
  model.ffn_hidden_size = 1536;
  return model;
}

struct Beside {
  std::size_t staging_blocks = 1;
  double write_seconds = 0.05;
  const char* layout = "";
};

// The tensors saved while two more steps were trained.
NamedTensors save_beside_training(const Beside& how, SaveOutcome& outcome) {
  TempFolder folder;
  SavedRun run{.model = wide_model(), .layout = how.layout, .last = 2, .save = folder.path()};
  SlowStorage slow(how.write_seconds);
  run.storage = &slow;
  run.staging_bytes = how.staging_blocks * kBlockBytes;
  run.steps_beside = 2;
  outcome = train(run).saved;
  return saved_tensors(folder.path(), 2);
}

TEST(AsyncSave, KeepsTheStateOfItsStepWhateverTheDiskAndTheMemory) {
  TempFolder folder;
  SavedRun waiting{.model = wide_model(), .last = 2, .save = folder.path()};
  EXPECT_EQ(train(waiting).saved.problem, "");
  NamedTensors expected = saved_tensors(folder.path(), 2);
  std::size_t bytes = 0;
  for (const auto& [name, values] : expected) bytes += values.size() * sizeof(double);
  ASSERT_GT(bytes, 3 * kBlockBytes);
  for (std::size_t blocks : {1, 2, 100}) {
    SCOPED_TRACE(blocks);
    SaveOutcome outcome;
    EXPECT_TRUE(save_beside_training({.staging_blocks = blocks}, outcome) == expected);
    EXPECT_EQ(outcome.problem, "");
  }
}

TEST(AsyncSave, RanksOfAProcessShareTheStagingMemory) {
  TempFolder folder;
  SavedRun waiting{.model = wide_model(), .layout = "dp2zero3,tp2", .last = 2};
  waiting.save = folder.path();
  EXPECT_EQ(train(waiting).saved.problem, "");
  SaveOutcome outcome;
  Beside how{.staging_blocks = 1, .write_seconds = 0.01, .layout = "dp2zero3,tp2"};
  EXPECT_TRUE(save_beside_training(how, outcome) == saved_tensors(folder.path(), 2));
  EXPECT_EQ(outcome.problem, "");
}

}  // namespace
}  // namespace bev::test
