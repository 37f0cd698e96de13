// Training steps on the GPU compared with the CPU.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "backend/cpu/cpu_kernels.h"
#include "base/file.h"
#include "bridge/hf_model.h"
#include "tests/support/devices.h"
#include "tests/support/layouts.h"
#include "tests/support/temp_folder.h"

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
    // Adam amplifies gradients that are zero except for rounding (the bias of k).
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

// Steps are CUDA graphs from the third on.
TEST_F(CudaTraining, StepsInFp8FollowTheCpus) {
  if (!gpu_has_arch(89)) GTEST_SKIP() << "no tensor cores for FP8";
  for (Fp8Scaling recipe : {Fp8Scaling::kTensorwise, Fp8Scaling::kDelayed}) {
    for (bool gated : {true, false}) {
      SCOPED_TRACE(concat(static_cast<int>(recipe), gated ? " llama" : " gpt"));
      ModelConfig model = gated ? tiny_llama() : tiny_gpt();
      model.hidden_size = 128;
      model.num_attention_heads = 4;
      model.num_query_groups = gated ? 2 : 4;
      model.kv_channels = 64;
      model.ffn_hidden_size = 256;
      model.init_method_std = 0.1;
      TinyRun run = run_of(model, Dtype::kBf16, nullptr);
      run.fp8.fp8_format = Fp8FormatChoice::kHybrid;
      run.fp8.fp8_recipe = recipe;
      run.fp8.fp8_amax_history_len = 3;
      run.fp8.fp8_amax_compute_algo = AmaxChoice::kMax;
      LayoutAnswer cpu = run_tiny(run);
      run.kernels = cuda_;
      LayoutAnswer cuda = run_tiny(run);
      // Later losses depend on single roundings to the neighbouring FP8 value.
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_NEAR(cuda.losses[i], cpu.losses[i], 0.03 * cpu.losses[i]) << "step " << i;
      }
      EXPECT_NEAR(cuda.grad_norms[0], cpu.grad_norms[0], 0.03 * cpu.grad_norms[0]);
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

// The contents of every file of a folder.
std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files[entry.path().filename()] = read_file(entry.path());
  }
  return files;
}

// Exports weights and loads them again: the initial weights are the same on all devices.
TEST_F(CudaTraining, ExportsAndLoadsWeightsAsTheCpuDoes) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    TempFolder folder;
    ModelConfig model = tiny_llama();
    auto with_engine = [&](const Kernels& kernels, const auto& body) {
      run_thread_ranks(1, {}, [&](World& world) {
        EngineOptions options;
        options.model = model;
        options.parallel.data_parallel_size = 1;
        options.dtype = dtype;
        Engine engine(world, kernels, options);
        body(engine);
      });
    };
    with_engine(cpu_kernels(),
                [&](Engine& engine) { export_hf(engine.model(), folder.path("cpu"), {}); });
    with_engine(*cuda_,
                [&](Engine& engine) { export_hf(engine.model(), folder.path("cuda"), {}); });
    EXPECT_EQ(files_of(folder.path("cpu")), files_of(folder.path("cuda")));
    EXPECT_FALSE(files_of(folder.path("cuda")).empty());
    with_engine(*cuda_, [&](Engine& engine) {
      for (const Param* param : engine.model().store().params()) {
        Tensor zeros = engine.model().ctx().allocate(dtype, param->local, "test");
        cuda_->fill(engine.model().ctx().stream, zeros, 0);
        engine.model().store().set_local_value(*param, zeros);
      }
      load_hf_weights(engine, folder.path("cpu"));
      export_hf(engine.model(), folder.path("again"), {});
    });
    EXPECT_EQ(files_of(folder.path("cpu")), files_of(folder.path("again")));
  }
}

}  // namespace
}  // namespace bev::test
