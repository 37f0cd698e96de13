// Models with states of constant size behind the engine: their results are those of whole forwards,
// whatever shares their steps.
#include "tests/infer/engine_rig.h"
#include "tests/support/hybrids.h"

namespace bev {
namespace {

using namespace test;

const std::vector<ModelConfig>& models() {
  static const std::vector<ModelConfig> all = {tiny_mamba(), tiny_nemotron_h(), tiny_falcon_h1(),
                                               tiny_granite_h()};
  return all;
}

TEST(RecurrentDecoding, IsTheWholeForwardAtEveryToken) {
  for (const ModelConfig& model : models()) {
    SCOPED_TRACE(model.family);
    for (auto [tp, pp] : {std::pair{1, 1}, {2, 1}, {4, 1}, {1, 2}}) {
      SCOPED_TRACE(concat("tp ", tp, " pp ", pp));
      const Case test_case{.model = model, .tp = tp, .pp = pp};
      const Prompts prompts = make_prompts(model, {1, 3, 20});
      const std::vector<SequenceResult> results = run_prompts(test_case, prompts, request_for(9));
      with_engine({.model = model}, [&](Engine& engine) {
        for (std::size_t i = 0; i < prompts.size(); ++i) {
          std::vector<std::int32_t> tokens = prompts[i];
          ASSERT_EQ(results[i].tokens.size(), 9u);
          for (std::size_t t = 0; t < 9; ++t) {
            const std::vector<double> row = log_softmax(last_logits(engine.model(), tokens));
            const auto best = std::max_element(row.begin(), row.end()) - row.begin();
            EXPECT_EQ(results[i].tokens[t], best);
            EXPECT_NEAR(results[i].logprobs[t], row[static_cast<std::size_t>(best)], 1e-10);
            tokens.push_back(results[i].tokens[t]);
          }
        }
      });
    }
  }
}

// Prompts in pieces, few slots, steps that mix prompts and single tokens, and preemption.
TEST(RecurrentDecoding, StepsThatAreSharedChangeNoResult) {
  for (const ModelConfig& model : models()) {
    SCOPED_TRACE(model.family);
    const Case test_case{.model = model};
    const std::vector<Request> requests =
        requests_for(make_prompts(model, {1, 12, 4, 25, 7, 2}), request_for(14));
    std::vector<SequenceResult> expected;
    for (const Request& request : requests) {
      expected.push_back(run_requests(test_case, {request})[0].sequences[0]);
    }
    for (const InferenceOptions& options :
         {InferenceOptions{.max_step_tokens = 3, .block_tokens = 1},
          {.max_sequences = 2, .max_step_tokens = 11, .block_tokens = 4},
          {.max_sequences = 6, .max_step_tokens = 64, .block_tokens = 2, .kv_cache_tokens = 50}}) {
      with_engine(test_case, [&](Engine& engine) {
        InferenceEngine inference(
            engine.model(), options.kv_cache_tokens > 0 ? options : options_for(requests, options));
        expect_near(first_sequences(generate(inference, requests)), expected, 1e-10);
        if (options.kv_cache_tokens > 0) {
          EXPECT_GT(inference.statistics().preemptions, 0);
        }
      });
    }
  }
}

// A state holds a whole sequence, so that blocks of another one are of no use.
TEST(RecurrentDecoding, ForksHaveStatesOfTheirOwn) {
  const Case test_case{.model = tiny_mamba()};
  Request request = request_for(8, 0.9);
  request.prompt = make_prompts(test_case.model, {9}).front();
  request.n = 3;
  const std::vector<SequenceResult> forked = run_requests(test_case, {request})[0].sequences;
  ASSERT_EQ(forked.size(), 3u);
  with_engine(test_case, [&](Engine& engine) {
    for (const SequenceResult& result : forked) {
      std::vector<std::int32_t> tokens = request.prompt;
      for (std::size_t t = 0; t < result.tokens.size(); ++t) {
        const std::vector<double> row = log_softmax(last_logits(engine.model(), tokens));
        EXPECT_NEAR(result.logprobs[t], row[static_cast<std::size_t>(result.tokens[t])], 1e-10);
        tokens.push_back(result.tokens[t]);
      }
    }
  });
}

TEST(RecurrentDecoding, AStateHasTheSameSizeForAnyLength) {
  with_engine({.model = tiny_falcon_h1()}, [](Engine& engine) {
    const std::vector<StateSpec> states = engine.model().stage().states(engine.model().ctx());
    ASSERT_EQ(states.size(), 4u);
    for (const StateSpec& state : states) {
      // 8 heads [5, 4], and 3 tokens of 32 + 2 x 2 x 5 channels.
      EXPECT_EQ(state.sequence_elements, 8 * 5 * 4 + 3 * 52);
      EXPECT_EQ(state.key_columns, 12);
    }
  });
}

}  // namespace
}  // namespace bev
