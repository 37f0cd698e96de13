// Exact kernels: the bits of a token's logits depend on its sequence alone, and are those of a
// whole forward as training runs it. The same checks run on the GPU (CudaExact).
#include <algorithm>

#include "infer/exact_check.h"
#include "infer/token_scores.h"
#include "tests/infer/engine_rig.h"

namespace bev {
namespace {

using namespace test;

struct ExactCase {
  ModelConfig model;
  Dtype dtype;
  int tp = 1;
};

std::vector<ExactCase> exact_cases() {
  return {{wide_llama(), Dtype::kF32},     {wide_llama(), Dtype::kBf16},
          {wide_llama(), Dtype::kBf16, 2}, {wide_moe(), Dtype::kBf16},
          {wide_mla(), Dtype::kF32},       {wide_mla(), Dtype::kBf16},
          {windowed_llama(), Dtype::kF32}, {tiny_gpt_oss(), Dtype::kBf16}};
}

Case case_of(const ExactCase& from) {
  Case test_case{from.model, from.dtype, from.tp};
  test_case.kernels = &cpu_exact_kernels();
  test_case.threads = 2;
  return test_case;
}

std::vector<Request> exact_requests(const ModelConfig& model, std::size_t count) {
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < count; ++i) lengths.push_back(1 + i * 11 % 29);
  std::vector<Request> requests = requests_for(make_prompts(model, lengths), request_for(5));
  for (std::size_t i = 0; i < count; i += 2) {  // neighbours sample in other ways
    requests[i].sampling.temperature = 1;
    requests[i].sampling.top_k = static_cast<std::int64_t>(i % 7);
  }
  return requests;
}

TEST(Exact, TheReportFindsNoDifference) {
  for (const ExactCase& each : exact_cases()) {
    with_engine(case_of(each), [&](Engine& engine) {
      std::vector<Request> requests = exact_requests(each.model, 20);
      ExactReport report = check_exact(engine.model(), requests, {.block_tokens = 16});
      if (engine.model().mesh().world().rank() != 0) return;
      EXPECT_GT(report.tokens, 400);
      EXPECT_EQ(report.different_tokens, 0);
      EXPECT_EQ(report.max_abs_logprob_diff, 0);
      EXPECT_EQ(report.mean_abs_logprob_diff, 0);
    });
  }
}

// The report can tell: other kernels sum in other orders.
TEST(Exact, TheReportFindsTheDifferencesOfOtherKernels) {
  Case test_case{wide_llama(), Dtype::kF32};
  with_engine(test_case, [&](Engine& engine) {
    ExactReport report =
        check_exact(engine.model(), exact_requests(test_case.model, 20), {.block_tokens = 16});
    EXPECT_GT(report.max_abs_logprob_diff, 0);
    EXPECT_LT(report.max_abs_logprob_diff, 1e-3);
  });
}

TEST(Exact, BatchesOfEverySizeGiveTheSameBits) {
  Case test_case = case_of({wide_llama(), Dtype::kBf16});
  std::vector<Request> requests = exact_requests(test_case.model, 256);
  for (Request& request : requests) request.max_new_tokens = 2;
  std::vector<SequenceResult> expected;
  with_engine(test_case, [&](Engine& engine) {
    for (std::int64_t batch : {256, 129, 64, 17, 16, 15}) {
      InferenceOptions options = options_for(requests, {.block_tokens = 16, .prefix_cache = false});
      options.max_sequences = batch;
      InferenceEngine inference(engine.model(), options);
      std::vector<SequenceResult> results = first_sequences(generate(inference, requests));
      if (expected.empty()) expected = results;
      expect_near(results, expected, 0);
    }
  });
}

TEST(Exact, PreemptionWarmCachesAndArrivalOrderKeepTheBits) {
  Case test_case = case_of({wide_llama(), Dtype::kBf16});
  std::vector<Request> requests = exact_requests(test_case.model, 16);
  for (Request& request : requests) request.max_new_tokens = 12;
  with_engine(test_case, [&](Engine& engine) {
    InferenceEngine roomy(engine.model(), options_for(requests, {.block_tokens = 4}));
    std::vector<SequenceResult> expected = first_sequences(generate(roomy, requests));
    expect_near(first_sequences(generate(roomy, requests)), expected, 0);
    InferenceEngine tight(
        engine.model(),
        {.max_sequences = 16, .max_step_tokens = 7, .block_tokens = 4, .kv_cache_tokens = 60});
    expect_near(first_sequences(generate(tight, requests)), expected, 0);
    EXPECT_GT(tight.statistics().preemptions, 3);
    std::vector<Request> backward(requests.rbegin(), requests.rend());
    std::vector<SequenceResult> reversed = first_sequences(generate(tight, backward));
    std::ranges::reverse(reversed);
    expect_near(reversed, expected, 0);
  });
}

TEST(Exact, PromptLogprobsAreTheScoresOfTraining) {
  for (const ExactCase& each : exact_cases()) {
    with_engine(case_of(each), [&](Engine& engine) {
      std::vector<Request> requests = exact_requests(each.model, 6);
      std::vector<TokenSample> samples;
      for (Request& request : requests) {
        request.prompt_logprobs = true;
        samples.push_back(labelled_sample(request.prompt, request.prompt));
      }
      std::vector<std::vector<double>> scores = token_scores(engine.model(), samples, 3);
      InferenceEngine inference(engine.model(),
                                options_for(requests, {.max_step_tokens = 10, .block_tokens = 16}));
      std::vector<RequestResult> results = generate(inference, requests);
      if (engine.model().mesh().world().rank() != 0) return;
      for (std::size_t i = 0; i < requests.size(); ++i) {
        scores[i].erase(scores[i].begin());
        EXPECT_EQ(results[i].prompt_logprobs, scores[i]);
      }
    });
  }
}

}  // namespace
}  // namespace bev
