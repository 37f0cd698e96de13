// The inference engine on the GPU: CUDA graphs, steps ahead of the host, memory, and exact kernels.
#include "backend/cuda/device.h"
#include "infer/exact_check.h"
#include "kernels/device.h"
#include "tests/infer/engine_rig.h"
#include "tests/support/devices.h"

namespace bev::test {
namespace {

// The head and product sizes of llama3.2-1b.
ModelConfig geometry_1b() {
  ModelConfig model = wide_llama();
  model.hidden_size = 2048;
  model.ffn_hidden_size = 8192;
  model.num_attention_heads = 32;
  model.num_query_groups = 8;
  model.vocab_size = 128256;
  return model;
}

std::vector<Request> some_requests(const ModelConfig& model, std::size_t count,
                                   std::int64_t new_tokens, bool sampled) {
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < count; ++i) lengths.push_back(1 + i * 11 % 70);
  std::vector<Request> requests =
      requests_for(make_prompts(model, lengths), request_for(new_tokens));
  for (std::size_t i = 0; i < count && sampled; i += 2) {
    requests[i].sampling.temperature = 0.9;
    requests[i].sampling.top_k = static_cast<std::int64_t>(i % 5) * 10;
    requests[i].sampling.top_p = i % 3 == 0 ? 0.9 : 1;
    requests[i].sampling.repetition_penalty = i % 4 == 0 ? 1.3 : 1;
  }
  return requests;
}

class CudaInference : public ::testing::Test {
 protected:
  void SetUp() override {
    if (find_device(TestDevice::kCuda) == nullptr) GTEST_SKIP() << "no CUDA device";
  }
  static Case on_gpu(const ModelConfig& model, Dtype dtype, bool exact = false) {
    Case test_case{model, dtype};
    test_case.kernels = exact ? &cuda_exact_kernels() : &cuda_kernels();
    return test_case;
  }
};

TEST_F(CudaInference, GraphsAndStepsAheadChangeNothing) {
  Case test_case = on_gpu(wide_llama(), Dtype::kF32, true);
  std::vector<Request> requests = some_requests(test_case.model, 40, 30, true);
  with_engine(test_case, [&](Engine& engine) {
    std::vector<SequenceResult> expected;
    for (bool overlap : {false, true}) {
      for (std::int64_t width : {4, 64}) {
        InferenceEngine inference(
            engine.model(), options_for(requests, {.block_tokens = width, .overlap = overlap}));
        std::vector<SequenceResult> results = first_sequences(generate(inference, requests));
        if (expected.empty()) expected = results;
        expect_near(results, expected, 0);
        EXPECT_GT(inference.statistics().graph_launches, 5);
      }
    }
  });
}

TEST_F(CudaInference, NothingIsAllocatedAfterTheStart) {
  Case test_case = on_gpu(wide_llama(), Dtype::kBf16);
  std::vector<Request> requests = some_requests(test_case.model, 64, 20, true);
  with_engine(test_case, [&](Engine& engine) {
    InferenceEngine inference(engine.model(), options_for(requests));
    generate(inference, requests);
    Rank& rank = engine.model().rank();
    std::size_t arena = rank.arena().reserved(), inputs = rank.inputs().reserved();
    std::int64_t free =
        engine.model().ctx().kernels.device.free_memory(engine.model().ctx().stream);
    for (int round = 0; round < 3; ++round) generate(inference, requests);
    EXPECT_EQ(rank.arena().reserved(), arena);
    EXPECT_EQ(rank.inputs().reserved(), inputs);
    EXPECT_EQ(engine.model().ctx().kernels.device.free_memory(engine.model().ctx().stream), free);
  });
}

TEST_F(CudaInference, PreemptionAndBeamsAreTheCpus) {
  std::vector<Request> requests = some_requests(tiny_llama(), 10, 12, true);
  requests[1].beams = BeamOptions{.num_beams = 3, .num_return_sequences = 3};
  requests[3].n = 3;
  requests[4].top_logprobs = 4;
  requests[5].prompt_logprobs = true;
  InferenceOptions options{
      .max_sequences = 8, .max_step_tokens = 60, .block_tokens = 4, .kv_cache_tokens = 200};
  auto run = [&](const Kernels& kernels) {
    Case test_case{tiny_llama(), Dtype::kF32};
    test_case.kernels = &kernels;
    std::vector<RequestResult> results;
    with_engine(test_case, [&](Engine& engine) {
      InferenceEngine inference(engine.model(), options);
      results = generate(inference, requests);
    });
    return results;
  };
  std::vector<RequestResult> cpu = run(cpu_kernels()), gpu = run(cuda_kernels());
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    expect_near(gpu[i].sequences, cpu[i].sequences, 2e-3);
    ASSERT_EQ(gpu[i].prompt_logprobs.size(), cpu[i].prompt_logprobs.size());
    for (std::size_t t = 0; t < cpu[i].prompt_logprobs.size(); ++t) {
      EXPECT_NEAR(gpu[i].prompt_logprobs[t], cpu[i].prompt_logprobs[t], 2e-3);
    }
  }
  ASSERT_EQ(gpu[4].sequences[0].top_logprobs.size(), cpu[4].sequences[0].top_logprobs.size());
  EXPECT_EQ(gpu[4].sequences[0].top_logprobs[0][0].logprob,
            gpu[4].sequences[0].top_logprobs[0][0].token == gpu[4].sequences[0].tokens[0]
                ? gpu[4].sequences[0].logprobs[0]
                : gpu[4].sequences[0].top_logprobs[0][0].logprob);
}

TEST_F(CudaInference, ExactKernelsGiveTheSameBitsInEveryBatchAndAsTraining) {
  for (const ModelConfig& model :
       {wide_llama(), wide_moe(), wide_mla(), tiny_gpt_oss(), windowed_llama()}) {
    for (Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
      SCOPED_TRACE(concat(model.family, " ", model.hidden_size, " ", name_of(dtype)));
      with_engine(on_gpu(model, dtype, true), [&](Engine& engine) {
        ExactReport report =
            check_exact(engine.model(), some_requests(model, 80, 8, true), {.block_tokens = 16});
        EXPECT_EQ(report.different_tokens, 0);
        EXPECT_EQ(report.max_abs_logprob_diff, 0);
      });
    }
  }
}

TEST_F(CudaInference, ExactKernelsServeTheGeometryOf1b) {
  Case test_case = on_gpu(geometry_1b(), Dtype::kBf16, true);
  std::vector<Request> requests = some_requests(test_case.model, 256, 3, false);
  with_engine(test_case, [&](Engine& engine) {
    std::vector<SequenceResult> expected;
    for (std::int64_t batch : {256, 129, 64, 17, 16, 15, 1}) {
      std::vector<Request> part(requests.begin(),
                                batch == 1 ? requests.begin() + 20 : requests.end());
      InferenceOptions options = options_for(part, {.prefix_cache = false});
      options.max_sequences = batch;
      InferenceEngine inference(engine.model(), options);
      std::vector<SequenceResult> results = first_sequences(generate(inference, part));
      if (expected.empty()) expected = results;
      expect_near(results, {expected.begin(), expected.begin() + std::ssize(results)}, 0);
    }
  });
}

}  // namespace
}  // namespace bev::test
