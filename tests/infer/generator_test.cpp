#include "infer/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

#include "backend/cpu/cpu_kernels.h"
#include "base/philox.h"
#include "comm/world.h"
#include "tests/support/expect_error.h"
#include "tests/support/layouts.h"
#include "tests/support/logits.h"

namespace bev {
namespace {

using Prompts = std::vector<std::vector<std::int32_t>>;

struct Case {
  ModelConfig model;
  Dtype dtype = Dtype::kF64;
  int tp = 1;
  int threads = 1;
  int pp = 1;
};

EngineOptions engine_options(const Case& test_case) {
  EngineOptions options;
  options.model = test_case.model;
  options.parallel.tensor_model_parallel_size = test_case.tp;
  options.parallel.pipeline_model_parallel_size = test_case.pp;
  options.parallel.data_parallel_size = 1;
  options.dtype = test_case.dtype;
  options.threads = test_case.threads;
  options.gradients = false;
  return options;
}

template <class Body>
void with_engine(const Case& test_case, const Body& body) {
  run_thread_ranks(test_case.tp * test_case.pp, {60.0}, [&](World& world) {
    Engine engine(world, cpu_kernels(), engine_options(test_case));
    body(engine);
  });
}

std::vector<GeneratedSequence> generate(const Case& test_case, const Prompts& prompts,
                                        const GenerationOptions& options) {
  std::vector<GeneratedSequence> results;
  with_engine(test_case, [&](Engine& engine) {
    std::vector<GeneratedSequence> mine = Generator(engine.model()).generate(prompts, options);
    if (engine.model().mesh().world().rank() == 0) results = std::move(mine);
  });
  return results;
}

Prompts make_prompts(const ModelConfig& model, const std::vector<std::size_t>& lengths) {
  Prompts prompts;
  for (std::size_t length : lengths) {
    auto& prompt = prompts.emplace_back();
    for (std::size_t i = 0; i < length; ++i) {
      std::uint32_t bits = philox(
          {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(prompts.size()), 0, 0}, 99)[0];
      prompt.push_back(
          static_cast<std::int32_t>(bits % static_cast<std::uint32_t>(model.vocab_size)));
    }
  }
  return prompts;
}

GenerationOptions options_for(std::int64_t max_new_tokens, double temperature = 0) {
  GenerationOptions options;
  options.max_new_tokens = max_new_tokens;
  options.sampling = {temperature, 0, 1, 5};
  return options;
}

// Logits of the last of `tokens`, without a cache.
std::vector<double> full_logits(Engine& engine, const std::vector<std::int32_t>& tokens) {
  TokenSample sample;
  sample.tokens = tokens;
  sample.targets.assign(tokens.size(), -1);
  sample.weights.assign(tokens.size(), 0.0f);
  sample.documents = {static_cast<std::int32_t>(tokens.size())};
  MicroBatch batch = make_micro_batch(engine.model().ctx(), std::span(&sample, 1), 0);
  Tensor logits = test::whole_logits(engine.model(), batch);
  auto last = static_cast<std::int64_t>(tokens.size()) - 1;
  std::vector<double> row;
  visit_float(logits.dtype(), [&](auto zero) {
    const auto* values = logits.rows(last, last + 1).as<decltype(zero)>();
    for (std::int64_t i = 0; i < logits.shape()[1]; ++i) {
      row.push_back(static_cast<double>(values[i]));
    }
  });
  return row;
}

// Every token must be what whole forwards without a cache choose, given the tokens before.
void expect_full_forward_agrees(const Case& test_case, double temperature, double tolerance) {
  Prompts prompts = make_prompts(test_case.model, {5, 1, 9, 2, 13});
  GenerationOptions options = options_for(12, temperature);
  with_engine(test_case, [&](Engine& engine) {
    auto results = Generator(engine.model()).generate(prompts, options);
    ASSERT_EQ(results.size(), prompts.size());
    for (std::size_t s = 0; s < prompts.size(); ++s) {
      ASSERT_EQ(results[s].tokens.size(), 12u);
      ASSERT_EQ(results[s].logprobs.size(), 12u);
      std::vector<std::int32_t> tokens = prompts[s];
      for (std::size_t i = 0; i < 12; ++i) {
        std::vector<double> logits = full_logits(engine, tokens);
        TokenPlace place{static_cast<std::int64_t>(s), static_cast<std::int64_t>(tokens.size())};
        TokenChoice expected = pick_token(logits, options.sampling, place);
        std::int32_t token = results[s].tokens[i];
        double logprob = expected.logprob + logits[static_cast<std::size_t>(token)] -
                         logits[static_cast<std::size_t>(expected.token)];
        EXPECT_NEAR(results[s].logprobs[i], logprob, tolerance) << "sequence " << s << ", " << i;
        // Rounding may swap two nearly equal logits only.
        if (test_case.dtype == Dtype::kF64) {
          EXPECT_EQ(token, expected.token);
        }
        if (temperature == 0) {
          EXPECT_GE(logprob, expected.logprob - tolerance);
        }
        tokens.push_back(token);
      }
    }
  });
}

ModelConfig windowed_llama() {
  ModelConfig model = test::tiny_llama();
  model.window_size = 3;
  model.window_layers = {2};
  model.rotary_base_local = 500;
  model.qk_layernorm = true;
  model.final_logit_softcapping = 4;
  model.attn_logit_softcapping = 2;
  model.post_norms = true;
  model.apply_layernorm_1p = true;
  model.embedding_multiplier = 3;
  return model;
}

ModelConfig neox_like() {
  ModelConfig model = test::tiny_gpt();
  model.position_embedding_type = PositionKind::kRope;
  model.rotary_percent = 0.67;
  model.rotary_interleaved = true;
  model.parallel_residual = true;
  model.num_query_groups = 1;
  return model;
}

void expect_near(const std::vector<GeneratedSequence>& a, const std::vector<GeneratedSequence>& b,
                 double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t s = 0; s < a.size(); ++s) {
    EXPECT_EQ(a[s].tokens, b[s].tokens) << "sequence " << s;
    ASSERT_EQ(a[s].logprobs.size(), b[s].logprobs.size());
    for (std::size_t i = 0; i < a[s].logprobs.size(); ++i) {
      EXPECT_NEAR(a[s].logprobs[i], b[s].logprobs[i], tolerance) << "sequence " << s << ", " << i;
    }
  }
}

TEST(Generator, GreedyEqualsFullForwardsForEveryModel) {
  for (const ModelConfig& model :
       {test::tiny_gpt(), test::tiny_llama(), windowed_llama(), neox_like()}) {
    expect_full_forward_agrees({model}, 0, 1e-12);
  }
}

TEST(Generator, SamplingEqualsFullForwards) {
  expect_full_forward_agrees({test::tiny_gpt()}, 1.3, 1e-12);
  expect_full_forward_agrees({windowed_llama()}, 0.8, 1e-12);
}

TEST(Generator, EveryDtypeEqualsFullForwardsWithinItsRounding) {
  for (const ModelConfig& model : {test::tiny_gpt(), windowed_llama()}) {
    expect_full_forward_agrees({model, Dtype::kF32}, 0, 1e-4);
    expect_full_forward_agrees({model, Dtype::kBf16}, 0, 0.15);
    expect_full_forward_agrees({model, Dtype::kF16}, 0, 0.02);
    expect_full_forward_agrees({model, Dtype::kF32}, 1, 1e-4);
  }
}

TEST(Generator, OtherPromptsDoNotChangeAResult) {
  Case test_case{windowed_llama()};
  Prompts prompts = make_prompts(test_case.model, {4, 11, 1, 7});
  for (double temperature : {0.0, 1.0}) {
    GenerationOptions options = options_for(8, temperature);
    std::vector<GeneratedSequence> together = generate(test_case, prompts, options);
    std::vector<GeneratedSequence> alone;
    for (std::size_t s = 0; s < prompts.size(); ++s) {
      options.first_sequence = static_cast<std::int64_t>(s);
      alone.push_back(generate(test_case, {prompts[s]}, options)[0]);
    }
    expect_near(together, alone, 1e-12);
  }
}

TEST(Generator, TheOrderOfPromptsDoesNotChangeGreedyResults) {
  Case test_case{test::tiny_gpt()};
  Prompts prompts = make_prompts(test_case.model, {4, 11, 1, 7});
  std::vector<GeneratedSequence> forward = generate(test_case, prompts, options_for(8));
  std::reverse(prompts.begin(), prompts.end());
  std::vector<GeneratedSequence> backward = generate(test_case, prompts, options_for(8));
  std::reverse(backward.begin(), backward.end());
  expect_near(forward, backward, 1e-12);
}

TEST(Generator, ACacheThatHoldsFewSequencesGivesTheSame) {
  Case test_case{test::tiny_llama()};
  Prompts prompts = make_prompts(test_case.model, {4, 11, 1, 7, 3});
  GenerationOptions options = options_for(6, 1);
  std::vector<GeneratedSequence> whole = generate(test_case, prompts, options);
  for (std::int64_t rows : {0, 20}) {
    options.cache_bytes = rows * 2 * 4 * 12 * 8;
    expect_near(whole, generate(test_case, prompts, options), 1e-12);
  }
}

TEST(Generator, ManySequencesPassTheHeadInPieces) {
  Case test_case{test::tiny_llama()};
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < 150; ++i) lengths.push_back(1 + i % 5);
  Prompts prompts = make_prompts(test_case.model, lengths);
  std::vector<GeneratedSequence> all = generate(test_case, prompts, options_for(2));
  std::vector<GeneratedSequence> last =
      generate(test_case, {prompts.begin() + 140, prompts.end()}, options_for(2));
  expect_near({all.begin() + 140, all.end()}, last, 1e-12);
}

TEST(Generator, ThreadsDoNotChangeABit) {
  Prompts prompts = make_prompts(test::tiny_llama(), {4, 11, 1});
  auto one = generate({test::tiny_llama(), Dtype::kF32, 1, 1}, prompts, options_for(6, 1));
  auto three = generate({test::tiny_llama(), Dtype::kF32, 1, 3}, prompts, options_for(6, 1));
  expect_near(one, three, 0);
}

TEST(Generator, TensorParallelRanksGenerateWhatOneDoes) {
  for (const ModelConfig& model : {test::tiny_gpt(), windowed_llama()}) {
    Prompts prompts = make_prompts(model, {5, 1, 8});
    for (double temperature : {0.0, 0.9}) {
      GenerationOptions options = options_for(7, temperature);
      std::vector<GeneratedSequence> one = generate({model}, prompts, options);
      std::mutex mutex;
      with_engine({model, Dtype::kF64, 2}, [&](Engine& engine) {
        auto two = Generator(engine.model()).generate(prompts, options);
        std::lock_guard lock(mutex);
        expect_near(one, two, 1e-11);
      });
    }
  }
}

TEST(Generator, EndTokensStopTheirSequenceOnly) {
  Case test_case{test::tiny_llama()};
  Prompts prompts = make_prompts(test_case.model, {4, 11, 1, 7});
  std::vector<GeneratedSequence> free = generate(test_case, prompts, options_for(10));
  GenerationOptions options = options_for(10);
  options.eos = {-1, free[0].tokens[3], free[2].tokens[1]};
  std::vector<GeneratedSequence> expected = free;
  for (GeneratedSequence& sequence : expected) {
    auto end = std::find_first_of(sequence.tokens.begin(), sequence.tokens.end(),
                                  options.eos.begin(), options.eos.end());
    if (end == sequence.tokens.end()) continue;
    sequence.tokens.erase(end + 1, sequence.tokens.end());
    sequence.logprobs.resize(sequence.tokens.size());
  }
  EXPECT_LE(expected[0].tokens.size(), 4u);
  EXPECT_LE(expected[2].tokens.size(), 2u);
  expect_near(generate(test_case, prompts, options), expected, 1e-12);
  options.ignore_eos = true;
  expect_near(generate(test_case, prompts, options), free, 1e-12);
}

TEST(Generator, ZeroAndOneNewTokens) {
  Case test_case{test::tiny_gpt()};
  Prompts prompts = make_prompts(test_case.model, {4, 2});
  std::vector<GeneratedSequence> none = generate(test_case, prompts, options_for(0));
  ASSERT_EQ(none.size(), 2u);
  EXPECT_TRUE(none[0].tokens.empty() && none[1].logprobs.empty());
  std::vector<GeneratedSequence> one = generate(test_case, prompts, options_for(1));
  std::vector<GeneratedSequence> more = generate(test_case, prompts, options_for(5));
  for (std::size_t s = 0; s < 2; ++s) {
    ASSERT_EQ(one[s].tokens.size(), 1u);
    EXPECT_EQ(one[s].tokens[0], more[s].tokens[0]);
    EXPECT_EQ(one[s].logprobs[0], more[s].logprobs[0]);
  }
  EXPECT_TRUE(generate(test_case, {}, options_for(5)).empty());
}

TEST(Generator, TheSinkHearsEveryTokenInOrder) {
  struct Collector : TokenSink {
    std::vector<GeneratedSequence> heard = std::vector<GeneratedSequence>(3);
    void on_token(std::int64_t sequence, const TokenChoice& choice) override {
      heard[static_cast<std::size_t>(sequence)].tokens.push_back(choice.token);
      heard[static_cast<std::size_t>(sequence)].logprobs.push_back(choice.logprob);
    }
  };
  with_engine({test::tiny_gpt()}, [&](Engine& engine) {
    Collector collector;
    auto results =
        Generator(engine.model())
            .generate(make_prompts(test::tiny_gpt(), {4, 2, 9}), options_for(5), &collector);
    expect_near(results, collector.heard, 0);
  });
}

TEST(Generator, MemoryIsGivenBackAndItsOldContentDoesNotMatter) {
  Prompts prompts = make_prompts(test::tiny_llama(), {4, 11, 1, 7});
  with_engine({windowed_llama()}, [&](Engine& engine) {
    Generator generator(engine.model());
    auto first = generator.generate(prompts, options_for(12));
    std::size_t in_use = engine.model().rank().arena().in_use(),
                peak = engine.model().rank().arena().peak();
    {
      Tensor dirt = engine.model().ctx().allocate(Dtype::kF64, {1 << 21}, "dirt");
      std::fill_n(dirt.as<double>(), dirt.numel(), std::nan(""));
    }
    engine.model().rank().arena().reset_peak();
    expect_near(first, generator.generate(prompts, options_for(12)), 0);
    EXPECT_EQ(engine.model().rank().arena().in_use(), in_use);
    EXPECT_EQ(engine.model().rank().arena().peak(), peak);
  });
}

TEST(Generator, LearnedPositionsLimitTheLength) {
  Case test_case{test::tiny_gpt()};
  Prompts prompts = make_prompts(test_case.model, {3, 30});
  EXPECT_EQ(generate(test_case, prompts, options_for(2))[1].tokens.size(), 2u);
  expect_error(ErrorKind::kConfig,
               {"--max-new-tokens", "prompt 1 of 30 tokens", "32 learned positions", "at most 2"},
               [&] { generate(test_case, prompts, options_for(3)); });
  test_case.model.position_embedding_type = PositionKind::kRope;
  EXPECT_EQ(generate(test_case, prompts, options_for(9))[1].tokens.size(), 9u);
}

TEST(Generator, BadRequestsAreErrors) {
  Case test_case{test::tiny_llama()};
  expect_error(ErrorKind::kInput, {"prompt 1", "empty"}, [&] {
    generate(test_case, {{1}, {}}, options_for(3));
  });
  expect_error(ErrorKind::kInput, {"prompt 0", "token 53", "vocabulary of 53"}, [&] {
    generate(test_case, {{52, 53}}, options_for(3));
  });
  expect_error(ErrorKind::kConfig, {"--temperature"},
               [&] { generate(test_case, {{1}}, options_for(3, -1)); });
  expect_error(ErrorKind::kConfig, {"--max-new-tokens"},
               [&] { generate(test_case, {{1}}, options_for(-1)); });
}

TEST(Generator, NanLogitsNameTheSequence) {
  with_engine({test::tiny_llama(), Dtype::kF32, 1, 2}, [&](Engine& engine) {
    // The embedding of token 7 alone is bad.
    for (const Param* param : engine.model().store().params()) {
      if (param->name != "embedding.word_embeddings.weight") continue;
      WeightLease value = engine.model().store().local_value(*param);
      std::fill_n(value.view.as<float>() + 7 * 20, 20, NAN);
    }
    expect_error(ErrorKind::kNumeric, {"sequence 1", "position 2", "NaN"}, [&] {
      Generator(engine.model()).generate(Prompts{{1, 2}, {3, 7}}, options_for(3));
    });
  });
}

TEST(Generator, StagesAndSharedKeyValueHeadsDoNotChangeAResult) {
  for (ModelConfig model : {test::tiny_gpt(), windowed_llama()}) {
    model.num_layers = 5;
    model.num_attention_heads = 4;
    model.num_query_groups = 2;
    Prompts prompts = make_prompts(model, {4, 11, 1, 7});
    for (double temperature : {0.0, 1.0}) {
      GenerationOptions options = options_for(6, temperature);
      std::vector<GeneratedSequence> expected = generate({model}, prompts, options);
      for (auto [tp, pp] : {std::pair{1, 2}, {1, 5}, {2, 2}, {4, 1}}) {
        SCOPED_TRACE(concat(model.family, ", tp ", tp, ", pp ", pp));
        expect_near(generate({model, Dtype::kF64, tp, 1, pp}, prompts, options), expected, 1e-10);
      }
    }
  }
}

TEST(Generator, LayoutsThatItCannotRunAreErrors) {
  run_thread_ranks(2, {60.0}, [&](World& world) {
    EngineOptions options = engine_options({test::tiny_llama(), Dtype::kF32, 1, 1, 2});
    options.parallel.pipeline_schedule = PipelineSchedule::kZeroBubbleV;
    Engine stages(world, cpu_kernels(), options);
    expect_error(ErrorKind::kConfig, {"generate", "stages"},
                 [&] { Generator generator(stages.model()); });
    options = engine_options({test::tiny_llama(), Dtype::kF32, 2});
    options.parallel.sequence_parallel = true;
    Engine split(world, cpu_kernels(), options);
    expect_error(ErrorKind::kConfig, {"generate", "tokens"},
                 [&] { Generator generator(split.model()); });
  });
}

}  // namespace
}  // namespace bev
