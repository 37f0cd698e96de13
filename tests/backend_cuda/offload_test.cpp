// Activation offloading to pinned host memory, with copies on a separate stream.
#include <gtest/gtest.h>

#include "backend/cuda/runtime/queue.h"
#include "tests/support/devices.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

class CudaOffload : public testing::Test {
 protected:
  void SetUp() override {
    cuda_ = find_device(TestDevice::kCuda);
    if (cuda_ == nullptr) GTEST_SKIP() << "no CUDA device";
  }
  static std::vector<OffloadConfig> ways(std::int64_t layers) {
    OffloadConfig by_layer, by_part;
    by_layer.min_offloaded_tensor_size = by_part.min_offloaded_tensor_size = 1;
    by_layer.cpu_offloading_num_layers = layers;
    by_part.fine_grained_activation_offloading = true;
    by_part.offload_modules = offload_part_names();
    return {by_layer, by_part};
  }
  // Large enough that copies and kernels overlap.
  EngineOptions large() const {
    EngineOptions options;
    options.model = tiny_llama();
    options.model.num_layers = 8;
    options.model.hidden_size = 512;
    options.model.ffn_hidden_size = 2048;
    options.model.num_attention_heads = 8;
    options.model.num_query_groups = 4;
    options.model.kv_channels = 64;
    options.parallel.data_parallel_size = 1;
    options.dtype = Dtype::kBf16;
    options.deterministic = true;
    return options;
  }

  const Kernels* cuda_ = nullptr;
};

struct Answer {
  std::vector<double> losses, norms;
  std::size_t peak = 0;
};

// Begins steps one after the other without reading their results.
Answer train(const Kernels& kernels, const EngineOptions& options) {
  Answer answer;
  run_thread_ranks(1, {}, [&](World& world) {
    Engine engine(world, kernels, options);
    CudaQueue& queue = queue_of(engine.model().ctx().stream);
    auto samples = random_samples(options.model.vocab_size, 2, 2048, 5);
    auto batches = rank_micro_batches(engine.model().ctx(), samples, 1);
    engine.train_step(batches, {1, 1e-3, 0.1, 1.0, 1.0});
    const Arena* host = engine.offloaded();
    std::size_t reserved = host != nullptr ? host->reserved() : 0;
    engine.model().rank().arena().reset_peak();
    std::int64_t waits = queue.host_waits();
    for (std::int64_t step = 2; step < 6; ++step) {
      engine.begin_step({batches}, {step, 1e-3, 0.1, 1.0, 1.0});
    }
    EXPECT_EQ(queue.host_waits(), waits);
    for (int step = 2; step < 6; ++step) {
      StepResult result = engine.finish_step().result;
      answer.losses.push_back(result.loss);
      answer.norms.push_back(result.grad_norm);
    }
    answer.peak = engine.model().rank().arena().peak();
    if (host != nullptr) {
      EXPECT_EQ(host->reserved(), reserved);
      EXPECT_EQ(host->in_use(), 0u);
      EXPECT_GT(host->peak(), 0u);
      EXPECT_EQ(engine.captured_steps(), 0u);
    }
  });
  return answer;
}

TEST_F(CudaOffload, LongStepsKeepTheirBitsWithoutAHostWaitInLessMemory) {
  for (RecomputeGranularity recompute :
       {RecomputeGranularity::kNone, RecomputeGranularity::kSelective,
        RecomputeGranularity::kFull}) {
    EngineOptions options = large();
    options.parallel.recompute_granularity = recompute;
    options.capture_steps = false;
    Answer expected = train(*cuda_, options);
    for (const OffloadConfig& offload : ways(8)) {
      SCOPED_TRACE(static_cast<int>(recompute));
      options.parallel.offload = offload;
      options.capture_steps = true;
      Answer answer = train(*cuda_, options);
      EXPECT_EQ(answer.losses, expected.losses);
      EXPECT_EQ(answer.norms, expected.norms);
      EXPECT_LT(answer.peak, expected.peak);
    }
  }
}

TEST_F(CudaOffload, SmallModelsAndRanksOfOneDeviceKeepTheirBits) {
  std::vector<ParallelConfig> layouts(4);
  layouts[1].pipeline_model_parallel_size = 2;
  layouts[2].pipeline_model_parallel_size = 2;
  layouts[2].pipeline_schedule = PipelineSchedule::kZeroBubbleV;
  layouts[3].tensor_model_parallel_size = 2;
  layouts[3].sequence_parallel = true;
  for (const ModelConfig& model : {uneven_gpt(), uneven_llama()}) {
    for (const ParallelConfig& layout : layouts) {
      TinyRun run;
      run.model = model;
      run.parallel = layout;
      run.dtype = Dtype::kBf16;
      run.sequence_length = 29;
      run.kernels = cuda_;
      run.deterministic = true;
      LayoutAnswer expected = run_tiny(run);
      for (const OffloadConfig& offload : ways(model.num_layers)) {
        run.parallel.offload = offload;
        LayoutAnswer answer = run_tiny(run);
        EXPECT_EQ(answer.losses, expected.losses);
        EXPECT_EQ(answer.gradients, expected.gradients);
        EXPECT_EQ(answer.weights, expected.weights);
      }
    }
  }
}

TEST_F(CudaOffload, StepsInFp8KeepTheirBits) {
  if (!gpu_has_arch(89)) GTEST_SKIP() << "no tensor cores for FP8";
  EngineOptions options = large();
  options.fp8.fp8_format = Fp8FormatChoice::kHybrid;
  options.fp8.fp8_recipe = Fp8Scaling::kTensorwise;
  options.capture_steps = false;
  Answer expected = train(*cuda_, options);
  for (const OffloadConfig& offload : ways(8)) {
    options.parallel.offload = offload;
    Answer answer = train(*cuda_, options);
    EXPECT_EQ(answer.losses, expected.losses);
    EXPECT_EQ(answer.norms, expected.norms);
    EXPECT_LT(answer.peak, expected.peak);
  }
}

}  // namespace
}  // namespace bev::test
