// Text generation on the GPU compared with the CPU.
#include "infer/generate.h"

#include <gtest/gtest.h>

#include "backend/cpu/cpu_kernels.h"
#include "comm/world.h"
#include "tests/support/devices.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

std::vector<SequenceResult> generate(const ModelConfig& model, const Kernels& kernels,
                                     const SamplingOptions& sampling) {
  EngineOptions options;
  options.model = model;
  options.parallel.data_parallel_size = 1;
  options.dtype = Dtype::kF32;
  options.gradients = options.optimizer = false;
  std::vector<Request> requests(3);
  requests[0].prompt = {3, 1, 4, 1, 5};
  requests[1].prompt = {2};
  requests[2].prompt = {7, 1, 8};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].max_new_tokens = 20;
    requests[i].sampling = sampling;
    requests[i].stream = static_cast<std::int64_t>(i);
  }
  std::vector<SequenceResult> results;
  run_thread_ranks(1, {60.0}, [&](World& world) {
    Engine engine(world, kernels, options);
    InferenceEngine inference(engine.model(), options_for(requests, {.block_tokens = 4}));
    for (RequestResult& result : bev::generate(inference, requests)) {
      results.push_back(std::move(result.sequences.at(0)));
    }
  });
  return results;
}

// Decoding steps as CUDA graphs, with sampling on the device.
TEST(CudaGenerate, TokensAreTheCpus) {
  const Kernels* cuda = find_device(TestDevice::kCuda);
  if (cuda == nullptr) GTEST_SKIP() << "no CUDA device";
  for (const ModelConfig& model : {tiny_llama(), tiny_gpt(), tiny_gpt_oss(), tiny_deepseek()}) {
    for (const SamplingOptions& sampling : {SamplingOptions{},
                                            {0.9, 0, 1, 5},
                                            {0.8, 10, 1, 6},
                                            {1.2, 0, 0.8, 7},
                                            {0.7, 12, 0.9, 8}}) {
      const auto cpu = generate(model, cpu_kernels(), sampling);
      const auto gpu = generate(model, *cuda, sampling);
      for (std::size_t s = 0; s < cpu.size(); ++s) {
        EXPECT_EQ(gpu[s].tokens, cpu[s].tokens);
        for (std::size_t i = 0; i < cpu[s].logprobs.size(); ++i) {
          EXPECT_NEAR(gpu[s].logprobs[i], cpu[s].logprobs[i], 1e-3);
        }
      }
    }
  }
}

}  // namespace
}  // namespace bev::test
