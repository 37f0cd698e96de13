// Asynchronous checkpointing: training continues during a save, and the saved state is that of the
// step after which it began.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "backend/cpu/cpu_kernels.h"
#include "kernels/device.h"
#include "tests/checkpoint/saved_run.h"
#include "tests/support/devices.h"
#include "tests/support/temp_folder.h"

namespace bev::test {
namespace {

// A disk that is slow at every write.
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

class AsyncSave : public testing::TestWithParam<TestDevice> {
 protected:
  void SetUp() override {
    kernels_ = find_device(GetParam());
    if (kernels_ == nullptr) GTEST_SKIP() << "no such device";
  }
  // A state of several blocks.
  SavedRun wide_run(const std::string& layout, const std::string& folder) const {
    SavedRun run{.layout = layout, .dtype = Dtype::kF32, .last = 2, .save = folder};
    run.model.num_layers = 2;
    run.model.hidden_size = 96;
    run.model.ffn_hidden_size = 3072;
    run.kernels = kernels_;
    return run;
  }
  NamedTensors save_waiting(const std::string& layout) const {
    TempFolder folder;
    EXPECT_EQ(train(wide_run(layout, folder.path())).saved.problem, "");
    return saved_tensors(folder.path(), 2);
  }
  // Saves to a slow disk while two more steps are trained.
  NamedTensors save_beside_training(const std::string& layout, std::size_t staging_blocks,
                                    double write_seconds) const {
    TempFolder folder;
    SavedRun run = wide_run(layout, folder.path());
    SlowStorage slow(write_seconds);
    run.storage = &slow;
    run.staging_bytes = staging_blocks * kBlockBytes;
    run.steps_while_saving = 2;
    EXPECT_EQ(train(run).saved.problem, "");
    return saved_tensors(folder.path(), 2);
  }

  const Kernels* kernels_ = nullptr;
};

TEST_P(AsyncSave, KeepsTheStateOfItsStepWhateverTheDiskAndTheMemory) {
  NamedTensors expected = save_waiting("");
  std::size_t bytes = 0;
  for (const auto& [name, values] : expected) bytes += values.size() * sizeof(float);
  ASSERT_GT(bytes, 3 * kBlockBytes);
  for (std::size_t blocks : {1, 2, 100}) {
    SCOPED_TRACE(blocks);
    EXPECT_TRUE(save_beside_training("", blocks, 0.05) == expected);
  }
}

TEST_P(AsyncSave, RanksOfAProcessShareTheStagingMemory) {
  const char* layout = "dp2zero3,tp2";
  EXPECT_TRUE(save_beside_training(layout, 1, 0.01) == save_waiting(layout));
}

TEST_P(AsyncSave, IsLoadedToTheBit) {
  TempFolder folder;
  SavedRun whole = wide_run("", folder.path("whole")), part = wide_run("", folder.path("part"));
  whole.last = 4;
  train(whole);
  train(part);
  part.first = 3;
  part.last = 4;
  part.load = part.save;
  train(part);
  EXPECT_TRUE(saved_tensors(whole.save, 4) == saved_tensors(part.save, 4));
}

TEST(Staging, IsMadeAheadWithinItsBound) {
  StagingPool pool(3 * kBlockBytes);
  std::unique_ptr<SideCopier> copier = cpu_kernels().device.open_copier({});
  pool.make_ahead(*copier, 10 * kBlockBytes, {});
  std::vector<StagingBlock> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(pool.take_at_once(*copier));
  for (const StagingBlock& block : blocks) EXPECT_NE(block.data, nullptr);
  EXPECT_EQ(pool.take_at_once(*copier).data, nullptr);
  pool.give(std::move(blocks.back()));
  EXPECT_NE(pool.take_at_once(*copier).data, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Cpu, AsyncSave, testing::Values(TestDevice::kCpu));
INSTANTIATE_TEST_SUITE_P(Cuda, AsyncSave, testing::Values(TestDevice::kCuda));

}  // namespace
}  // namespace bev::test
