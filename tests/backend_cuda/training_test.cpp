// Whole training steps on the GPU beside the CPU's.
#include <gtest/gtest.h>

#include "tests/support/devices.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

class CudaTraining : public testing::Test {
 protected:
  void SetUp() override {
    cuda_ = find_device(TestDevice::kCuda);
    if (cuda_ == nullptr) GTEST_SKIP() << "no CUDA device";
  }
  TinyRun run_of(const ModelConfig& model, Dtype dtype, const Kernels* kernels) {
    TinyRun run;
    run.model = model;
    run.dtype = dtype;
    run.steps = 10;
    run.micro_batch_size = 2;
    run.sequence_length = 29;
    run.kernels = kernels;
    return run;
  }
  static std::vector<std::pair<std::string, ModelConfig>> models() {
    return {{"gpt", tiny_gpt()},
            {"llama", tiny_llama()},
            {"uneven gpt", uneven_gpt()},
            {"uneven llama", uneven_llama()}};
  }
  const Kernels* cuda_ = nullptr;
};

TEST_F(CudaTraining, TenStepsInF32FollowTheCpus) {
  for (const auto& [name, model] : models()) {
    SCOPED_TRACE(name);
    LayoutAnswer cpu = run_tiny(run_of(model, Dtype::kF32, nullptr));
    LayoutAnswer cuda = run_tiny(run_of(model, Dtype::kF32, cuda_));
    // Adam makes as much of a gradient that is zero but for rounding (the bias of k) as of any.
    EXPECT_EQ(answer_difference(cpu, cuda, {1e-4, 0.2, 1e-3}), "");
    for (std::size_t i = 0; i < cpu.losses.size(); ++i) {
      EXPECT_NEAR(cuda.losses[i], cpu.losses[i], 2e-3) << "step " << i;
    }
  }
}

TEST_F(CudaTraining, TenStepsIn16BitsStayNearTheCpusInF32) {
  for (const auto& [name, model] : models()) {
    SCOPED_TRACE(name);
    LayoutAnswer cpu = run_tiny(run_of(model, Dtype::kF32, nullptr));
    for (Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
      LayoutAnswer cuda = run_tiny(run_of(model, dtype, cuda_));
      for (std::size_t i = 0; i < cpu.losses.size(); ++i) {
        EXPECT_NEAR(cuda.losses[i], cpu.losses[i], 0.03 * cpu.losses[i])
            << name_of(dtype) << ", step " << i;
      }
    }
  }
}

TEST_F(CudaTraining, DeterministicModeGivesTheSameBitsTwice) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    TinyRun run = run_of(uneven_llama(), dtype, cuda_);
    run.deterministic = true;
    LayoutAnswer first = run_tiny(run), second = run_tiny(run);
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_EQ(first.weights, second.weights);
  }
}

TEST_F(CudaTraining, RecomputingChangesNothing) {
  TinyRun run = run_of(uneven_llama(), Dtype::kF32, cuda_);
  run.deterministic = true;
  LayoutAnswer kept = run_tiny(run);
  run.parallel.recompute_granularity = RecomputeGranularity::kFull;
  run.parallel.recompute_num_layers = 1;
  EXPECT_EQ(kept.losses, run_tiny(run).losses);
  run.parallel.recompute_granularity = RecomputeGranularity::kSelective;
  run.parallel.recompute_modules = {"core_attn", "layernorm", "activation", "mlp"};
  EXPECT_EQ(kept.losses, run_tiny(run).losses);
}

}  // namespace
}  // namespace bev::test
