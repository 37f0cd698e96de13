// Training steps as CUDA graphs, and steps that are begun ahead of their results.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "backend/cuda/runtime/queue.h"
#include "data/batch.h"
#include "tests/support/devices.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

// Document lengths of the samples of each micro-batch of a step.
using StepDocuments = std::vector<std::vector<std::int32_t>>;

// Tokens differ between steps and between samples.
std::vector<TokenSample> step_samples(const StepDocuments& documents, std::int64_t vocabulary,
                                      std::int64_t step) {
  std::vector<TokenSample> samples;
  for (const std::vector<std::int32_t>& lengths : documents) {
    TokenSample sample;
    sample.documents = lengths;
    std::uint64_t state = static_cast<std::uint64_t>(step) * 977 + samples.size() * 31 + 5;
    for (std::int32_t length : lengths) {
      for (std::int32_t i = 0; i < length; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        sample.tokens.push_back(
            static_cast<std::int32_t>((state >> 33) % static_cast<std::uint64_t>(vocabulary)));
        sample.targets.push_back(i % 7 == 3 ? -1 : (sample.tokens.back() * 5 + 3) % 29);
        sample.weights.push_back(i % 7 == 3 ? 0.0f : 1.0f);
      }
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

struct Answer {
  std::vector<double> losses, norms;
  std::vector<float> weights;
  std::size_t recorded = 0;
};

class CudaRecordedStep : public testing::Test {
 protected:
  void SetUp() override {
    cuda_ = find_device(TestDevice::kCuda);
    if (cuda_ == nullptr) GTEST_SKIP() << "no CUDA device";
  }

  template <class Body>
  void with_engine(const ModelConfig& model, Dtype dtype, bool record, const Body& body) {
    run_thread_ranks(1, {}, [&](World& world) {
      EngineOptions options;
      options.model = model;
      options.parallel.data_parallel_size = 1;
      options.dtype = dtype;
      options.deterministic = true;
      options.capture_steps = record;
      options.params_norm = options.zero_gradients = true;
      Engine engine(world, *cuda_, options);
      body(engine);
    });
  }
  static StepInput input_of(std::int64_t step) {
    return {step + 1, 1e-2 / static_cast<double>(step + 1), 0.1, step % 2 == 0 ? 1.0 : 256.0, 0.5};
  }
  static std::vector<float> weights_of(Engine& engine) {
    std::vector<float> all;
    for (const Param* param : engine.model().store().params()) {
      Context& ctx = engine.model().ctx();
      Tensor wide = ctx.allocate(Dtype::kF32, param->local, "test");
      ctx.kernels.cast(ctx.stream, engine.model().store().local_value(*param).view, wide);
      std::vector<float> values = ctx.download<float>(wide.view().flat());
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  Answer train(const ModelConfig& model, Dtype dtype, bool record,
               const std::vector<StepDocuments>& steps) {
    Answer answer;
    with_engine(model, dtype, record, [&](Engine& engine) {
      for (std::size_t i = 0; i < steps.size(); ++i) {
        auto step = static_cast<std::int64_t>(i);
        auto samples = step_samples(steps[i], model.vocab_size, step);
        auto batches = rank_micro_batches(engine.model().ctx(), samples, 1);
        StepResult result = engine.train_step(batches, input_of(step));
        answer.losses.push_back(result.loss);
        for (const Metric& metric : result.metrics) answer.norms.push_back(metric.value);
        // The memory of a captured step is free between steps, so an evaluation may use it.
        if (i % 3 == 1) answer.losses.push_back(engine.evaluate(batches).loss);
      }
      answer.weights = weights_of(engine);
      answer.recorded = engine.captured_steps();
    });
    return answer;
  }

  const Kernels* cuda_ = nullptr;
};

TEST_F(CudaRecordedStep, GivesTheBitsOfRunningEveryKernel) {
  const StepDocuments one = {{20}}, three = {{20}, {20}, {20}}, packed = {{7, 12, 1}, {7, 12, 1}},
                      unlike = {{7, 13}, {13, 7}};
  const std::vector<StepDocuments> steps = {one,    one,    one,    three,  three, three, unlike,
                                            unlike, packed, packed, packed, one,   three, packed};
  for (const ModelConfig& model : {uneven_gpt(), uneven_llama()}) {
    for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
      SCOPED_TRACE(name_of(dtype));
      Answer each = train(model, dtype, false, steps), recorded = train(model, dtype, true, steps);
      EXPECT_EQ(each.recorded, 0u);
      EXPECT_EQ(recorded.recorded, 3u);  // steps with different micro-batches are not captured
      EXPECT_EQ(each.losses, recorded.losses);
      EXPECT_EQ(each.norms, recorded.norms);
      EXPECT_EQ(each.weights, recorded.weights);
    }
  }
}

// Thread ranks exchange addresses and events on the host, which a CUDA graph cannot capture.
TEST_F(CudaRecordedStep, RanksThatShareAGpuAsThreadsRunCallByCall) {
  const ModelConfig model = tiny_llama();
  run_thread_ranks(2, {60.0}, [&](World& world) {
    EngineOptions options;
    options.model = model;
    options.parallel.data_parallel_size = 2;
    Engine engine(world, *cuda_, options);
    for (std::int64_t step = 0; step < 4; ++step) {
      auto samples = step_samples({{20}, {20}}, model.vocab_size, step);
      auto batches = rank_micro_batches(engine.model().ctx(), samples, 1);
      EXPECT_TRUE(engine.train_step(batches, input_of(step)).finite);
    }
    EXPECT_EQ(engine.captured_steps(), 0u);
  });
}

// Four bad steps in a row, each begun with two more after it, which must not change anything.
TEST_F(CudaRecordedStep, StepsBegunAfterABadOneChangeNothing) {
  const ModelConfig model = uneven_llama();
  for (bool record : {false, true}) {
    with_engine(model, Dtype::kBf16, record, [&](Engine& engine) {
      auto batch_of = [&](std::int64_t step, bool bad) {
        auto samples = step_samples({{20}}, model.vocab_size, step);
        if (bad) samples[0].weights[4] = std::numeric_limits<float>::infinity();
        return rank_micro_batches(engine.model().ctx(), samples, 1);
      };
      for (std::int64_t step = 0; step < 3; ++step) {
        EXPECT_TRUE(engine.train_step(batch_of(step, false), input_of(step)).finite);
      }
      EXPECT_EQ(engine.captured_steps(), record ? 1u : 0u);
      std::vector<float> before = weights_of(engine);
      for (std::int64_t step = 3; step < 7; ++step) {
        engine.begin_step({batch_of(step, true)}, input_of(step));
        engine.begin_step({batch_of(step + 1, false)}, input_of(step + 1));
        engine.begin_step({batch_of(step + 2, false)}, input_of(step + 2));
        EXPECT_FALSE(engine.finish_step().result.finite);
        EXPECT_EQ(weights_of(engine), before);
        EXPECT_EQ(engine.in_flight().size(), 2u);
        engine.begin_again([](const StepInFlight& later, std::size_t) { return later.input; });
        EXPECT_TRUE(engine.finish_step().result.finite);
        EXPECT_TRUE(engine.finish_step().result.finite);
        EXPECT_NE(weights_of(engine), before);
        before = weights_of(engine);
      }
      EXPECT_EQ(engine.updates(), 11);
      EXPECT_TRUE(engine.train_step(batch_of(7, false), input_of(7)).finite);
      EXPECT_NE(weights_of(engine), before);
      EXPECT_EQ(engine.updates(), 12);
    });
  }
}

// The stream is blocked until the host releases it: code that waits for the device before that
// fails.
TEST_F(CudaRecordedStep, BeginningAStepNeverWaitsForTheDevice) {
  struct Gate {
    std::atomic<bool> open{false}, given_up{false};
  };
  // Small enough for the driver's launch queue of about a thousand entries; a full queue would
  // block.
  ModelConfig model = tiny_llama();
  model.num_layers = 1;
  for (bool record : {false, true}) {
    SCOPED_TRACE(record);
    with_engine(model, Dtype::kBf16, record, [&](Engine& engine) {
      CudaQueue& queue = queue_of(engine.model().ctx().stream);
      auto begin = [&](std::int64_t step) {
        auto samples = step_samples({{20}}, model.vocab_size, step);
        engine.begin_step({rank_micro_batches(engine.model().ctx(), samples, 1)}, input_of(step));
      };
      for (std::int64_t step = 0; step < 4; ++step) {
        begin(step);
        EXPECT_TRUE(engine.finish_step().result.finite);
      }
      Gate gate;
      check_cuda(cudaLaunchHostFunc(
                     queue.stream(),
                     [](void* data) {
                       Gate& at = *static_cast<Gate*>(data);
                       for (int i = 0; i < 2000 && !at.open; ++i) {
                         std::this_thread::sleep_for(std::chrono::milliseconds(10));
                       }
                       at.given_up = !at.open;
                     },
                     &gate),
                 "hold the stream up");
      std::int64_t waits = queue.host_waits();
      begin(4);
      begin(5);
      EXPECT_EQ(queue.host_waits(), waits);
      gate.open = true;
      EXPECT_TRUE(engine.finish_step().result.finite);
      EXPECT_TRUE(engine.finish_step().result.finite);
      EXPECT_FALSE(gate.given_up);
      EXPECT_EQ(queue.host_waits(), waits + 2);  // one for each result
    });
  }
}

}  // namespace
}  // namespace bev::test
