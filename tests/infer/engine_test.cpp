// The inference engine against whole forwards without a cache, under every layout.
#include <algorithm>
#include <mutex>

#include "tests/infer/engine_rig.h"

namespace bev {
namespace {

using namespace test;

// The engine's results on this rank.
std::vector<SequenceResult> generate_on(Engine& engine, const Prompts& prompts,
                                        const Request& like) {
  std::vector<Request> requests = requests_for(prompts, like);
  InferenceEngine inference(engine.model(), options_for(requests, {.block_tokens = 4}));
  return first_sequences(generate(inference, requests));
}

// Every token must be what whole forwards without a cache choose, given the tokens before.
void expect_full_forward_agrees(const Case& test_case, double temperature, double tolerance) {
  Prompts prompts = make_prompts(test_case.model, {5, 1, 9, 2, 13});
  Request options = request_for(12, temperature);
  with_engine(test_case, [&](Engine& engine) {
    auto results = generate_on(engine, prompts, options);
    ASSERT_EQ(results.size(), prompts.size());
    for (std::size_t s = 0; s < prompts.size(); ++s) {
      ASSERT_EQ(results[s].tokens.size(), 12u);
      ASSERT_EQ(results[s].logprobs.size(), 12u);
      std::vector<std::int32_t> tokens = prompts[s];
      for (std::size_t i = 0; i < 12; ++i) {
        std::vector<double> logits = last_logits(engine.model(), tokens);
        SamplingRule rule =
            sampling_rule(options.sampling, {static_cast<std::int64_t>(s), std::ssize(tokens)});
        std::int32_t expected = select_token(logits, rule), token = results[s].tokens[i];
        double largest = *std::max_element(logits.begin(), logits.end()), sum = 0;
        for (double logit : logits) sum += std::exp(logit - largest);
        double z = logits[static_cast<std::size_t>(token)];
        EXPECT_NEAR(results[s].logprobs[i], z - largest - std::log(sum), tolerance)
            << "sequence " << s << ", " << i;
        // Rounding may swap two nearly equal logits only.
        if (test_case.dtype == Dtype::kF64) {
          EXPECT_EQ(token, expected);
        }
        if (temperature == 0) {
          EXPECT_GE(z, largest - tolerance);
        }
        tokens.push_back(token);
      }
    }
  });
}

TEST(InferenceEngine, GreedyEqualsFullForwardsForEveryModel) {
  for (const ModelConfig& model :
       {test::tiny_gpt(), test::tiny_llama(), windowed_llama(), neox_like()}) {
    expect_full_forward_agrees({model}, 0, 1e-12);
  }
}

TEST(InferenceEngine, SamplingEqualsFullForwards) {
  expect_full_forward_agrees({test::tiny_gpt()}, 1.3, 1e-12);
  expect_full_forward_agrees({windowed_llama()}, 0.8, 1e-12);
}

TEST(InferenceEngine, EveryDtypeEqualsFullForwardsWithinItsRounding) {
  for (const ModelConfig& model : {test::tiny_gpt(), windowed_llama()}) {
    expect_full_forward_agrees({model, Dtype::kF32}, 0, 1e-4);
    expect_full_forward_agrees({model, Dtype::kBf16}, 0, 0.15);
    expect_full_forward_agrees({model, Dtype::kF16}, 0, 0.02);
    expect_full_forward_agrees({model, Dtype::kF32}, 1, 1e-4);
  }
}

TEST(InferenceEngine, OtherPromptsDoNotChangeAResult) {
  Case test_case{windowed_llama()};
  Prompts prompts = make_prompts(test_case.model, {4, 11, 1, 7});
  for (double temperature : {0.0, 1.0}) {
    Request options = request_for(8, temperature);
    std::vector<SequenceResult> together = run_prompts(test_case, prompts, options);
    std::vector<SequenceResult> alone;
    for (std::size_t s = 0; s < prompts.size(); ++s) {
      options.stream = static_cast<std::int64_t>(s);
      alone.push_back(run_prompts(test_case, {prompts[s]}, options)[0]);
    }
    expect_near(together, alone, 1e-12);
  }
}

TEST(InferenceEngine, TheOrderOfPromptsDoesNotChangeGreedyResults) {
  Case test_case{test::tiny_gpt()};
  Prompts prompts = make_prompts(test_case.model, {4, 11, 1, 7});
  std::vector<SequenceResult> forward = run_prompts(test_case, prompts, request_for(8));
  std::reverse(prompts.begin(), prompts.end());
  std::vector<SequenceResult> backward = run_prompts(test_case, prompts, request_for(8));
  std::reverse(backward.begin(), backward.end());
  expect_near(forward, backward, 1e-12);
}

TEST(InferenceEngine, ACacheThatHoldsFewSequencesGivesTheSame) {
  Case test_case{test::tiny_llama()};
  Prompts prompts = make_prompts(test_case.model, {4, 11, 1, 7, 3});
  Request options = request_for(6, 1);
  std::vector<SequenceResult> whole = run_prompts(test_case, prompts, options);
  for (std::int64_t tokens : {16, 20, 32}) {
    expect_near(
        whole,
        run_prompts(test_case, prompts, options, {.block_tokens = 4, .kv_cache_tokens = tokens}),
        1e-12);
  }
}

TEST(InferenceEngine, ManySequencesPassTheHeadInPieces) {
  Case test_case{test::tiny_llama()};
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < 150; ++i) lengths.push_back(1 + i % 5);
  Prompts prompts = make_prompts(test_case.model, lengths);
  std::vector<SequenceResult> all = run_prompts(test_case, prompts, request_for(2));
  std::vector<SequenceResult> last =
      run_prompts(test_case, {prompts.begin() + 140, prompts.end()}, request_for(2));
  expect_near({all.begin() + 140, all.end()}, last, 1e-12);
}

TEST(InferenceEngine, ThreadsDoNotChangeABit) {
  Prompts prompts = make_prompts(test::tiny_llama(), {4, 11, 1});
  auto one = run_prompts({test::tiny_llama(), Dtype::kF32, 1, 1}, prompts, request_for(6, 1));
  auto three = run_prompts({test::tiny_llama(), Dtype::kF32, 1, 3}, prompts, request_for(6, 1));
  expect_near(one, three, 0);
}

TEST(InferenceEngine, TensorParallelRanksGenerateWhatOneDoes) {
  for (const ModelConfig& model : {test::tiny_gpt(), windowed_llama()}) {
    Prompts prompts = make_prompts(model, {5, 1, 8});
    for (double temperature : {0.0, 0.9}) {
      Request options = request_for(7, temperature);
      std::vector<SequenceResult> one = run_prompts({model}, prompts, options);
      std::mutex mutex;
      with_engine({model, Dtype::kF64, 2}, [&](Engine& engine) {
        auto two = generate_on(engine, prompts, options);
        std::lock_guard lock(mutex);
        expect_near(one, two, 1e-11);
      });
    }
  }
}

TEST(InferenceEngine, EndTokensStopTheirSequenceOnly) {
  Case test_case{test::tiny_llama()};
  Prompts prompts = make_prompts(test_case.model, {4, 11, 1, 7});
  std::vector<SequenceResult> free = run_prompts(test_case, prompts, request_for(10));
  Request options = request_for(10);
  options.end_tokens = {-1, free[0].tokens[3], free[2].tokens[1]};
  std::vector<SequenceResult> expected = free;
  for (SequenceResult& sequence : expected) {
    auto end = std::find_first_of(sequence.tokens.begin(), sequence.tokens.end(),
                                  options.end_tokens.begin(), options.end_tokens.end());
    if (end == sequence.tokens.end()) continue;
    sequence.tokens.erase(end + 1, sequence.tokens.end());
    sequence.logprobs.resize(sequence.tokens.size());
  }
  EXPECT_LE(expected[0].tokens.size(), 4u);
  EXPECT_LE(expected[2].tokens.size(), 2u);
  expect_near(run_prompts(test_case, prompts, options), expected, 1e-12);
  options.ignore_end = true;
  expect_near(run_prompts(test_case, prompts, options), free, 1e-12);
}

TEST(InferenceEngine, ZeroAndOneNewTokens) {
  Case test_case{test::tiny_gpt()};
  Prompts prompts = make_prompts(test_case.model, {4, 2});
  std::vector<SequenceResult> none = run_prompts(test_case, prompts, request_for(0));
  ASSERT_EQ(none.size(), 2u);
  EXPECT_TRUE(none[0].tokens.empty() && none[1].logprobs.empty());
  std::vector<SequenceResult> one = run_prompts(test_case, prompts, request_for(1));
  std::vector<SequenceResult> more = run_prompts(test_case, prompts, request_for(5));
  for (std::size_t s = 0; s < 2; ++s) {
    ASSERT_EQ(one[s].tokens.size(), 1u);
    EXPECT_EQ(one[s].tokens[0], more[s].tokens[0]);
    EXPECT_EQ(one[s].logprobs[0], more[s].logprobs[0]);
  }
  EXPECT_TRUE(run_prompts(test_case, {}, request_for(5)).empty());
}

TEST(InferenceEngine, TheSinkHearsEveryTokenInOrder) {
  struct Collector : RequestSink {
    std::vector<SequenceResult> heard = std::vector<SequenceResult>(3);
    void on_token(const TokenEvent& event) override {
      heard[static_cast<std::size_t>(event.request)].tokens.push_back(event.token);
      heard[static_cast<std::size_t>(event.request)].logprobs.push_back(event.logprob);
    }
  };
  with_engine({test::tiny_gpt()}, [&](Engine& engine) {
    Collector collector;
    std::vector<Request> requests =
        requests_for(make_prompts(test::tiny_gpt(), {4, 2, 9}), request_for(5));
    InferenceEngine inference(engine.model(), options_for(requests));
    expect_near(first_sequences(generate(inference, requests, &collector)), collector.heard, 0);
  });
}

TEST(InferenceEngine, MemoryIsGivenBackAndItsOldContentDoesNotMatter) {
  Prompts prompts = make_prompts(test::tiny_llama(), {4, 11, 1, 7});
  with_engine({windowed_llama()}, [&](Engine& engine) {
    std::vector<Request> requests = requests_for(prompts, request_for(12));
    InferenceEngine inference(engine.model(),
                              options_for(requests, {.block_tokens = 4, .prefix_cache = false}));
    Arena& arena = engine.model().rank().arena();
    auto first = first_sequences(generate(inference, requests));
    std::size_t in_use = arena.in_use(), peak = arena.peak();
    {
      Tensor dirt = engine.model().ctx().allocate(Dtype::kF64, {1 << 21}, "dirt");
      std::fill_n(dirt.as<double>(), dirt.numel(), std::nan(""));
    }
    arena.reset_peak();
    expect_near(first, first_sequences(generate(inference, requests)), 0);
    EXPECT_EQ(arena.in_use(), in_use);
    EXPECT_EQ(arena.peak(), peak);
  });
}

TEST(InferenceEngine, LearnedPositionsLimitTheLength) {
  Case test_case{test::tiny_gpt()};
  Prompts prompts = make_prompts(test_case.model, {3, 30});
  EXPECT_EQ(run_prompts(test_case, prompts, request_for(2))[1].tokens.size(), 2u);
  expect_error(ErrorKind::kConfig,
               {"--max-new-tokens", "request 1 of 30 tokens", "32 learned positions", "at most 2"},
               [&] { run_prompts(test_case, prompts, request_for(3)); });
  test_case.model.position_embedding_type = PositionKind::kRope;
  EXPECT_EQ(run_prompts(test_case, prompts, request_for(9))[1].tokens.size(), 9u);
}

TEST(InferenceEngine, BadRequestsAreErrors) {
  Case test_case{test::tiny_llama()};
  expect_error(ErrorKind::kInput, {"request 1", "empty"}, [&] {
    run_prompts(test_case, {{1}, {}}, request_for(3));
  });
  expect_error(ErrorKind::kInput, {"request 0", "token 53", "vocabulary of 53"}, [&] {
    run_prompts(test_case, {{52, 53}}, request_for(3));
  });
  expect_error(ErrorKind::kConfig, {"--temperature"},
               [&] { run_prompts(test_case, {{1}}, request_for(3, -1)); });
  expect_error(ErrorKind::kConfig, {"--max-new-tokens"},
               [&] { run_prompts(test_case, {{1}}, request_for(-1)); });
}

TEST(InferenceEngine, NanLogitsEndTheirSequenceOnly) {
  with_engine({test::tiny_llama(), Dtype::kF32, 1, 2}, [&](Engine& engine) {
    // The embedding of token 7 alone is bad.
    for (const Param* param : engine.model().store().params()) {
      if (param->name != "embedding.word_embeddings.weight") continue;
      WeightLease value = engine.model().store().local_value(*param);
      std::fill_n(value.view.as<float>() + 7 * 20, 20, NAN);
    }
    auto results = generate_on(engine, {{1, 2}, {3, 7}}, request_for(3));
    EXPECT_EQ(results[0].tokens.size(), 3u);
    EXPECT_EQ(results[0].finish, FinishReason::kLength);
    EXPECT_EQ(results[1].finish, FinishReason::kError);
    for (const char* part : {"sequence 1", "position 2", "NaN"}) {
      EXPECT_NE(results[1].error.find(part), std::string::npos) << results[1].error;
    }
  });
}

TEST(InferenceEngine, StagesAndSharedKeyValueHeadsDoNotChangeAResult) {
  for (ModelConfig model : {test::tiny_gpt(), windowed_llama()}) {
    model.num_layers = 5;
    model.num_attention_heads = 4;
    model.num_query_groups = 2;
    Prompts prompts = make_prompts(model, {4, 11, 1, 7});
    for (double temperature : {0.0, 1.0}) {
      Request options = request_for(6, temperature);
      std::vector<SequenceResult> expected = run_prompts({model}, prompts, options);
      for (auto [tp, pp] : {std::pair{1, 2}, {1, 5}, {2, 2}, {4, 1}}) {
        SCOPED_TRACE(concat(model.family, ", tp ", tp, ", pp ", pp));
        expect_near(run_prompts({model, Dtype::kF64, tp, 1, pp}, prompts, options), expected,
                    1e-10);
      }
    }
  }
}

TEST(InferenceEngine, LayoutsThatItCannotRunAreErrors) {
  run_thread_ranks(2, {60.0}, [&](World& world) {
    EngineOptions options = test::engine_options({test::tiny_llama(), Dtype::kF32, 1, 1, 2});
    options.parallel.pipeline_schedule = PipelineSchedule::kZeroBubbleV;
    Engine stages(world, cpu_kernels(), options);
    expect_error(ErrorKind::kConfig, {"generate", "stages"},
                 [&] { InferenceEngine refused(stages.model(), {}); });
    options = test::engine_options({test::tiny_llama(), Dtype::kF32, 2});
    options.parallel.sequence_parallel = true;
    Engine split(world, cpu_kernels(), options);
    expect_error(ErrorKind::kConfig, {"generate", "tokens"},
                 [&] { InferenceEngine refused(split.model(), {}); });
  });
}

}  // namespace
}  // namespace bev
