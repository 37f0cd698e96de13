// What the engine does with many requests: chunks, preemption, the prefix cache, forks, beams,
// endings, and replicas. Results must be those of each request alone.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/clock.h"
#include "tests/infer/engine_rig.h"
#include "tokenizer/byte_tokenizer.h"

namespace bev {
namespace {

using namespace test;

// Prompts of many lengths, some with a common beginning.
Prompts mixed_prompts(const ModelConfig& model, std::size_t count) {
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < count; ++i) lengths.push_back(1 + i * 7 % 13);
  Prompts prompts = make_prompts(model, lengths);
  const std::vector<std::int32_t> common = make_prompts(model, {9}).front();
  for (std::size_t i = 0; i < count; i += 3) {
    prompts[i].insert(prompts[i].begin(), common.begin(), common.end());
  }
  return prompts;
}

Request sampled(std::int64_t max_new_tokens) {
  Request request = request_for(max_new_tokens, 0.9);
  request.sampling.top_p = 0.95;
  request.sampling.min_p = 0.01;
  request.sampling.repetition_penalty = 1.2;
  request.sampling.presence_penalty = 0.3;
  request.sampling.frequency_penalty = 0.1;
  request.sampling.logit_bias = {{3, 1.5F}, {5, -INFINITY}};
  return request;
}

// Each request in an engine of its own.
std::vector<SequenceResult> alone(const Case& test_case, const std::vector<Request>& requests) {
  std::vector<SequenceResult> results;
  for (const Request& request : requests) {
    results.push_back(run_requests(test_case, {request}, {.prefix_cache = false})[0].sequences[0]);
  }
  return results;
}

TEST(Batching, ChunksBudgetsAndBlocksDoNotChangeAResult) {
  for (const Case& test_case : {Case{windowed_llama()}, Case{tiny_deepseek()}}) {
    for (const Request& like : {request_for(9), sampled(9)}) {
      std::vector<Request> requests = requests_for(mixed_prompts(test_case.model, 8), like);
      std::vector<SequenceResult> expected = alone(test_case, requests);
      for (InferenceOptions options :
           {InferenceOptions{.block_tokens = 4},
            {.max_step_tokens = 3, .block_tokens = 1},
            {.block_tokens = 4, .overlap = true},
            {.max_sequences = 3, .max_step_tokens = 5, .block_tokens = 2, .overlap = true},
            {.block_tokens = 64, .prefix_cache = false}}) {
        expect_near(first_sequences(run_requests(test_case, requests, options)), expected, 1e-11);
      }
    }
  }
}

TEST(Batching, PreemptedSequencesGoOnAsIfNothingHappened) {
  Case test_case{windowed_llama()};
  std::vector<Request> requests = requests_for(mixed_prompts(test_case.model, 10), sampled(24));
  std::vector<SequenceResult> expected = alone(test_case, requests);
  for (auto [prefix_cache, overlap] : {std::pair{false, false}, {true, false}, {true, true}}) {
    with_engine(test_case, [&, cache = prefix_cache, ahead = overlap](Engine& engine) {
      // The largest request needs 45 of these tokens.
      InferenceOptions options{.max_sequences = 10,
                               .max_step_tokens = 64,
                               .block_tokens = 2,
                               .kv_cache_tokens = 46,
                               .prefix_cache = cache,
                               .overlap = ahead};
      InferenceEngine inference(engine.model(), options);
      expect_near(first_sequences(generate(inference, requests)), expected, 1e-11);
      EXPECT_GE(inference.statistics().preemptions, 10);
      EXPECT_EQ(inference.blocks().used, 0);
    });
  }
}

// A cache of just the size that requests need holds all of them at a time.
TEST(Batching, RequestsThatFitRunTogether) {
  Case test_case{tiny_llama(), Dtype::kF32};
  std::vector<Request> requests =
      requests_for(make_prompts(test_case.model, std::vector<std::size_t>(8, 5)), request_for(20));
  with_engine(test_case, [&](Engine& engine) {
    for (std::int64_t width : {4, 32}) {
      InferenceEngine inference(engine.model(), options_for(requests, {.block_tokens = width}));
      generate(inference, requests);
      EXPECT_EQ(inference.statistics().steps, 20);
      EXPECT_EQ(inference.statistics().preemptions, 0);
    }
  });
}

TEST(Batching, CachedPrefixesAreNotComputedAgain) {
  Case test_case{tiny_llama()};
  std::vector<std::int32_t> prompt = make_prompts(test_case.model, {17}).front();
  Request request = request_for(4);
  request.prompt = prompt;
  with_engine(test_case, [&](Engine& engine) {
    InferenceEngine inference(engine.model(), {.block_tokens = 4, .kv_cache_tokens = 200});
    auto run = [&](const Request& each) { return generate(inference, {&each, 1}).at(0); };
    RequestResult cold = run(request);
    std::int64_t computed = inference.statistics().tokens_computed;
    EXPECT_EQ(cold.cached_tokens, 0);
    RequestResult warm = run(request);
    EXPECT_EQ(warm.cached_tokens, 16);
    EXPECT_EQ(inference.statistics().tokens_computed - computed, computed - 16);
    expect_near(warm.sequences, cold.sequences, 1e-12);
    // The output is cached too: 17 + 3 tokens have been computed.
    Request longer = request;
    longer.prompt.insert(longer.prompt.end(), cold.sequences[0].tokens.begin(),
                         cold.sequences[0].tokens.end());
    EXPECT_EQ(run(longer).cached_tokens, 20);
    // A prompt of whole blocks computes its last token for the logits.
    Request whole = request;
    whole.prompt.resize(16);
    EXPECT_EQ(run(whole).cached_tokens, 12);
    Request salted = request;
    salted.cache_key.salt = "someone else";
    EXPECT_EQ(run(salted).cached_tokens, 0);
    Request scored = request;
    scored.prompt_logprobs = true;
    EXPECT_EQ(run(scored).cached_tokens, 0);
    inference.reset_prefix_cache();
    EXPECT_EQ(run(request).cached_tokens, 0);
  });
}

TEST(Batching, SequencesOfAPromptShareItAndDrawApart) {
  Case test_case{windowed_llama()};
  Request request = sampled(8);
  request.prompt = make_prompts(test_case.model, {11}).front();
  request.n = 5;
  for (InferenceOptions options : {InferenceOptions{.block_tokens = 4, .prefix_cache = false},
                                   {.max_sequences = 6, .max_step_tokens = 4, .block_tokens = 8}}) {
    with_engine(test_case, [&](Engine& engine) {
      options.kv_cache_tokens = 200;
      InferenceEngine inference(engine.model(), options);
      RequestResult result = generate(inference, {&request, 1}).at(0);
      ASSERT_EQ(result.sequences.size(), 5u);
      // The prompt once, then 7 tokens of each sequence.
      EXPECT_EQ(inference.statistics().tokens_computed, 11 + 5 * 7);
      std::set<std::vector<std::int32_t>> different;
      for (std::int64_t index = 0; index < 5; ++index) {
        const SequenceResult& sequence = result.sequences[static_cast<std::size_t>(index)];
        EXPECT_EQ(sequence.index, index);
        EXPECT_EQ(sequence.finish, FinishReason::kLength);
        different.insert(sequence.tokens);
        // Alone, with the same random numbers.
        Request single = request;
        single.n = 1;
        single.stream = index << 32;
        expect_near({sequence}, alone(test_case, {single}), 1e-11);
      }
      EXPECT_GE(different.size(), 4u);
    });
  }
}

TEST(Batching, BeamsFollowTheSearchOverWholeForwards) {
  for (const Case& test_case : {Case{tiny_gpt()}, Case{windowed_llama(), Dtype::kF64, 2}}) {
    Request request = request_for(6);
    request.prompt = make_prompts(test_case.model, {5}).front();
    request.beams = BeamOptions{.num_beams = 3, .num_return_sequences = 3};
    request.end_tokens = {7, 11};
    std::vector<BeamSearch::Hypothesis> expected;
    with_engine({test_case.model}, [&](Engine& engine) {
      BeamSearch search(beam_search_of(request));
      Prompts beams = {request.prompt};
      while (!beams.empty()) {
        std::vector<std::vector<double>> rows;
        for (const auto& beam : beams) rows.push_back(last_logits(engine.model(), beam));
        std::vector<std::span<const double>> views(rows.begin(), rows.end());
        Prompts next;
        for (const BeamSearch::Child& child : search.advance(views)) {
          next.push_back(beams[static_cast<std::size_t>(child.parent)]);
          next.back().push_back(child.token);
        }
        beams = std::move(next);
      }
      expected = search.finish();
    });
    // Alone, with other requests, and with hardly any room.
    std::vector<Request> requests = {request, request_for(9), request};
    requests[1].prompt = {1, 2, 3};
    for (InferenceOptions options :
         {InferenceOptions{.block_tokens = 4}, {.block_tokens = 2, .kv_cache_tokens = 40}}) {
      std::vector<RequestResult> results = run_requests(test_case, requests, options);
      for (std::size_t which : {0, 2}) {
        const std::vector<SequenceResult>& found = results[which].sequences;
        ASSERT_EQ(found.size(), 3u);
        for (std::size_t i = 0; i < 3; ++i) {
          EXPECT_EQ(found[i].tokens, expected[i].tokens);
          EXPECT_NEAR(found[i].score, expected[i].score, 1e-5);
          EXPECT_EQ(found[i].finish,
                    expected[i].ended ? FinishReason::kStop : FinishReason::kLength);
        }
      }
    }
  }
}

// Beams that are preempted, or find no slot for a fork, wait and go on as if nothing happened.
TEST(Batching, BeamsStandPreemptionAmongOtherTraffic) {
  Case test_case{tiny_llama()};
  Request beam = request_for(10);
  beam.prompt = make_prompts(test_case.model, {7}).front();
  beam.beams = BeamOptions{.num_beams = 4, .num_return_sequences = 4};
  std::vector<SequenceResult> expected = run_requests(test_case, {beam})[0].sequences;
  with_engine(test_case, [&](Engine& engine) {
    InferenceEngine inference(engine.model(),
                              {.max_sequences = 6, .block_tokens = 2, .kv_cache_tokens = 76});
    struct Keep : RequestSink {
      std::map<RequestId, RequestResult> results;
      void on_finished(RequestResult result) override { results[result.id] = std::move(result); }
    } sink;
    beam.priority = 5;
    for (int i = 0; i < 3; ++i) inference.submit(beam);
    for (const auto& prompt : mixed_prompts(test_case.model, 12)) {  // these go first
      inference.step(sink);
      Request request = request_for(14, 1);
      request.prompt = prompt;
      inference.submit(request);
    }
    inference.run(sink);
    EXPECT_GT(inference.statistics().preemptions, 5);
    ASSERT_EQ(sink.results.size(), 15u);
    for (RequestId id : {0, 1, 2}) expect_near(sink.results[id].sequences, expected, 1e-9);
    EXPECT_EQ(inference.blocks().used, 0);
    beam.max_new_tokens = 14;
    expect_error(ErrorKind::kInput, {"--num-beams", "4 beams of 20 tokens", "has 76"},
                 [&] { inference.submit(beam); });
  });
}

// The likeliest tokens of log-probabilities p, and the same number for the token that was reported
// by itself.
void expect_top_list(const std::vector<TopLogprob>& top, const std::vector<double>& p,
                     const TopLogprob& own, std::size_t count) {
  ASSERT_EQ(top.size(), count);
  std::vector<double> sorted = p;
  std::ranges::sort(sorted, std::greater<>());
  for (std::size_t k = 0; k < count; ++k) {
    EXPECT_NEAR(top[k].logprob, sorted[k], 1e-11);
    EXPECT_NEAR(top[k].logprob, p[static_cast<std::size_t>(top[k].token)], 1e-11);
    if (k > 0) {
      EXPECT_LE(top[k].logprob, top[k - 1].logprob);
    }
    if (top[k].token == own.token) {
      EXPECT_EQ(top[k].logprob, own.logprob);  // to the bit
    }
  }
  EXPECT_LE(own.logprob, top[0].logprob);
}

TEST(Batching, PromptAndTopLogprobsAreThoseOfWholeForwards) {
  for (const Case& test_case :
       {Case{windowed_llama()}, Case{tiny_gpt(), Dtype::kF64, 2},
        Case{tiny_llama(), Dtype::kF64, 1, 1, 2}, Case{tiny_llama(), Dtype::kF64, 2, 1, 2, 2}}) {
    Request request = request_for(4);
    request.prompt_logprobs = true;
    request.prompt_top_logprobs = 4;
    request.top_logprobs = 3;
    std::vector<Request> requests = requests_for(make_prompts(test_case.model, {9, 1, 6}), request);
    std::vector<RequestResult> results =
        run_requests(test_case, requests, {.max_step_tokens = 5, .block_tokens = 4});
    with_engine({test_case.model}, [&](Engine& engine) {
      for (std::size_t r = 0; r < requests.size(); ++r) {
        const SequenceResult& sequence = results[r].sequences[0];
        std::vector<std::int32_t> tokens = requests[r].prompt;
        tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
        ASSERT_EQ(results[r].prompt_logprobs.size(), requests[r].prompt.size() - 1);
        ASSERT_EQ(results[r].prompt_top_logprobs.size(), requests[r].prompt.size() - 1);
        ASSERT_EQ(sequence.top_logprobs.size(), 4u);
        for (std::size_t at = 1; at < tokens.size(); ++at) {
          std::vector<double> p = log_softmax(last_logits(
              engine.model(), {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(at)}));
          double own = p[static_cast<std::size_t>(tokens[at])];
          if (at < requests[r].prompt.size()) {
            EXPECT_NEAR(results[r].prompt_logprobs[at - 1], own, 1e-11);
            expect_top_list(results[r].prompt_top_logprobs[at - 1], p,
                            {tokens[at], results[r].prompt_logprobs[at - 1]}, 4);
            continue;
          }
          std::size_t step = at - requests[r].prompt.size();
          const std::vector<TopLogprob>& top = sequence.top_logprobs[step];
          expect_top_list(top, p, {sequence.tokens[step], sequence.logprobs[step]}, 3);
          EXPECT_EQ(top[0].token, sequence.tokens[step]);
        }
      }
    });
  }
}

// Tokens of one logit are all reported as the maximum if one of them is, in every precision.
TEST(Batching, EqualLogitsHaveEqualLogprobs) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF64}) {
    for (int tp : {1, 2}) {
      Case test_case{tiny_llama(), dtype, tp};
      test_case.model.logit_scale = 0.7;
      Request request = request_for(3);
      request.prompt = make_prompts(test_case.model, {40}).front();
      request.prompt_logprobs = true;
      request.prompt_top_logprobs = 5;
      request.top_logprobs = 5;
      run_thread_ranks(tp, {60.0}, [&](World& world) {
        Engine engine(world, cpu_kernels(), engine_options(test_case));
        // Each row of the head takes one number, up to the sign: two logits exist, each of half of
        // the tokens.
        for (const Param* param : engine.model().store().params()) {
          if (param->name != "output_layer.weight") continue;
          WeightLease value = engine.model().store().local_value(*param);
          const std::int64_t first = shard_range(53, tp, world.rank()).begin;
          visit_float(value.view.dtype, [&](auto zero) {
            auto* rows = value.view.as<decltype(zero)>();
            for (std::int64_t i = 0; i < value.view.numel(); ++i) {
              const float sign = (first + i / 20) % 2 == 0 ? 1 : -1;
              rows[i] = static_cast<decltype(zero)>(i % 20 == 3 ? sign : 0.0F);
            }
          });
        }
        InferenceEngine inference(engine.model(), {.block_tokens = 4, .kv_cache_tokens = 100});
        RequestResult result = generate(inference, {&request, 1}).at(0);
        int greatest = 0;
        for (std::size_t at = 0; at < result.prompt_logprobs.size(); ++at) {
          const std::vector<TopLogprob>& top = result.prompt_top_logprobs[at];
          const double own = result.prompt_logprobs[at];
          EXPECT_LE(own, top[0].logprob);
          greatest += own == top[0].logprob ? 1 : 0;
          for (const TopLogprob& entry : top) EXPECT_EQ(entry.logprob, top[0].logprob);
        }
        EXPECT_GT(greatest, 5);
        EXPECT_LT(greatest, 34);
        for (std::size_t i = 0; i < 3; ++i) {
          EXPECT_EQ(result.sequences[0].top_logprobs[i][4].logprob,
                    result.sequences[0].logprobs[i]);
        }
      });
    }
  }
}

// The numbers of a list are rounded apart from that of the token.
TEST(Batching, ListsOfTheLikeliestNeverRise) {
  TopLists lists{{4, 2, 9, -1}, {3.0, 2.0, 2.0, -INFINITY}, {0.5}, 4};
  auto of = [&](std::int32_t token, double logprob) {
    std::vector<double> out;
    for (const TopLogprob& entry : lists.list(0, 4, {token, logprob})) out.push_back(entry.logprob);
    return out;
  };
  EXPECT_EQ(of(4, -0.5), (std::vector<double>{-0.5, -1.5, -1.5}));
  EXPECT_EQ(of(4, -0.6), (std::vector<double>{-0.6, -1.5, -1.5}));
  EXPECT_EQ(of(2, -1.4), (std::vector<double>{-0.5, -1.4, -1.4}));
  EXPECT_EQ(of(9, -1.6), (std::vector<double>{-0.5, -1.6, -1.6}));
  EXPECT_EQ(of(9, -0.4), (std::vector<double>{-0.4, -0.4, -0.4}));
  EXPECT_EQ(of(7, -1.4), (std::vector<double>{-0.5, -1.4, -1.4}));
  EXPECT_EQ(of(7, -3), (std::vector<double>{-0.5, -1.5, -1.5}));
  EXPECT_EQ(lists.list(0, 1, {4, -0.5}).size(), 1u);
}

TEST(Batching, ALongPromptIsScoredAFewRowsAtATime) {
  Case test_case{tiny_llama(), Dtype::kF32};
  test_case.model.vocab_size = 20000;
  constexpr std::int64_t kTokens = 1200, kRowBytes = 20000 * 4;
  Request request = request_for(0);
  request.prompt = make_prompts(test_case.model, {kTokens}).front();
  request.prompt_logprobs = true;
  request.prompt_top_logprobs = 2;
  RequestResult in_steps = run_requests(test_case, {request}, {.max_step_tokens = 100})[0];
  with_engine(test_case, [&](Engine& engine) {
    InferenceEngine inference(engine.model(), options_for({&request, 1}));
    Arena& arena = engine.model().rank().arena();
    const std::size_t before = arena.in_use();
    arena.reset_peak();
    RequestResult whole = generate(inference, {&request, 1}).at(0);
    EXPECT_EQ(inference.statistics().steps, 1);
    EXPECT_LT(arena.peak() - before, std::size_t{3 * 256 * kRowBytes});
    ASSERT_EQ(std::ssize(whole.prompt_top_logprobs), kTokens - 1);
    for (std::size_t at = 0; at + 1 < kTokens; ++at) {
      EXPECT_NEAR(whole.prompt_logprobs[at], in_steps.prompt_logprobs[at], 1e-4);
      EXPECT_NEAR(whole.prompt_top_logprobs[at][1].logprob,
                  in_steps.prompt_top_logprobs[at][1].logprob, 1e-4);
    }
  });
}

TEST(Batching, PromptsAreScoredWithoutNewTokens) {
  Case test_case{tiny_llama()};
  Request request = request_for(0);
  request.prompt_logprobs = true;
  std::vector<Request> requests = requests_for(make_prompts(test_case.model, {9, 2}), request);
  for (std::int64_t budget : {3, 100}) {
    std::vector<RequestResult> results =
        run_requests(test_case, requests, {.max_step_tokens = budget, .block_tokens = 4});
    EXPECT_EQ(results[0].prompt_logprobs.size(), 8u);
    EXPECT_EQ(results[1].prompt_logprobs.size(), 1u);
    EXPECT_TRUE(results[0].prompt_top_logprobs.empty());
    EXPECT_TRUE(results[0].sequences[0].tokens.empty());
    EXPECT_EQ(results[0].sequences[0].finish, FinishReason::kLength);
  }
}

TEST(Batching, EndsComeAsAsked) {
  Case test_case{tiny_gpt()};
  Request free = request_for(12);
  free.prompt = make_prompts(test_case.model, {4}).front();
  std::vector<std::int32_t> tokens = alone(test_case, {free})[0].tokens;
  std::int32_t stop = tokens[5];
  auto first = static_cast<std::size_t>(std::ranges::find(tokens, stop) - tokens.begin());

  Request request = free;
  request.stop_tokens = {stop};
  request.ignore_end = true;  // stop tokens are meant all the same
  SequenceResult stopped = alone(test_case, {request})[0];
  EXPECT_EQ(stopped.tokens.size(), first + 1);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);

  // Before min_new_tokens end tokens are not selected.
  request.min_new_tokens = 10;
  SequenceResult late = alone(test_case, {request})[0];
  ASSERT_GE(late.tokens.size(), 10u);
  EXPECT_EQ(std::count(late.tokens.begin(), late.tokens.begin() + 10, stop), 0);

  request = free;
  request.rules.forced_eos_token = 2;
  EXPECT_EQ(alone(test_case, {request})[0].tokens.back(), 2);
  request.prompt = {1};
  request.rules.forced_bos_token = 6;
  EXPECT_EQ(alone(test_case, {request})[0].tokens.front(), 6);

  request = free;
  request.rules.no_repeat_ngram_size = 1;
  SequenceResult distinct = alone(test_case, {request})[0];
  std::set<std::int32_t> seen(request.prompt.begin(), request.prompt.end());
  for (std::int32_t token : distinct.tokens) EXPECT_TRUE(seen.insert(token).second);
}

TEST(Batching, StopTextsEndWhereTheyAreComplete) {
  ModelConfig model = tiny_gpt();
  ByteTokenizer tokenizer;
  model.vocab_size = tokenizer.vocab_size();
  Case test_case{model};
  Request request = request_for(20, 1.0);
  request.prompt = {65, 66};
  SequenceResult free = alone(test_case, {request})[0];
  // A text that begins within the output, over several tokens.
  std::vector<std::int32_t> part(free.tokens.begin() + 6, free.tokens.begin() + 9);
  for (std::int32_t& token : part) token = token % 128;
  Request letters = request;
  for (std::int32_t token = 128; token < model.vocab_size; ++token) {
    letters.sampling.logit_bias.push_back({token, -INFINITY});
  }
  free = alone(test_case, {letters})[0];
  part.assign(free.tokens.begin() + 6, free.tokens.begin() + 9);
  std::string stop = tokenizer.decode(part);
  std::string text = tokenizer.decode(free.tokens);
  auto end = static_cast<std::size_t>(text.find(stop)) + stop.size();
  letters.stop = {stop, "never in there"};
  RequestResult result = run_requests(test_case, {letters}, {.tokenizer = &tokenizer})[0];
  EXPECT_EQ(result.sequences[0].tokens.size(), end);  // a byte is a token
  EXPECT_EQ(result.sequences[0].stop_text, stop);
  EXPECT_EQ(result.sequences[0].finish, FinishReason::kStop);
  expect_error(ErrorKind::kConfig, {"--stop", "tokenizer"},
               [&] { run_requests(test_case, {letters}); });
}

// Collects what it hears and cancels requests after some tokens.
struct Canceller : RequestSink {
  InferenceEngine* engine = nullptr;
  std::map<RequestId, std::int64_t> cancel_after, heard;
  std::map<RequestId, RequestResult> finished;
  void on_token(const TokenEvent& event) override {
    std::int64_t count = ++heard[event.request];
    auto limit = cancel_after.find(event.request);
    if (limit != cancel_after.end() && count == limit->second) engine->cancel(event.request);
  }
  void on_finished(RequestResult result) override { finished[result.id] = std::move(result); }
};

TEST(Batching, CancelledAndLateRequestsGiveTheirBlocksBack) {
  Case test_case{tiny_llama(), Dtype::kF32};
  with_engine(test_case, [&](Engine& engine) {
    InferenceEngine inference(
        engine.model(),
        {.max_sequences = 8, .block_tokens = 2, .kv_cache_tokens = 150, .overlap = true});
    Canceller sink;
    sink.engine = &inference;
    Prompts prompts = mixed_prompts(test_case.model, 60);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      Request request = request_for(15, 1);
      request.prompt = prompts[i];
      request.stream = static_cast<std::int64_t>(i);
      request.n = i % 5 == 0 ? 3 : 1;
      if (i % 7 == 3) request.deadline = monotonic_seconds() - 1;  // it has passed
      RequestId id = inference.submit(request);
      if (i % 4 == 1) sink.cancel_after[id] = 1 + static_cast<std::int64_t>(i % 9);
      if (i == 12) inference.cancel(id);
    }
    inference.cancel(1000);  // unknown ones are ignored
    inference.run(sink);
    ASSERT_EQ(sink.finished.size(), prompts.size());
    for (const auto& [id, result] : sink.finished) {
      for (const SequenceResult& sequence : result.sequences) {
        bool late = id % 7 == 3, cancelled = id == 12 || sink.cancel_after.contains(id);
        FinishReason expected = late        ? FinishReason::kDeadline
                                : cancelled ? FinishReason::kCancelled
                                            : FinishReason::kLength;
        EXPECT_EQ(sequence.finish, expected) << id;
        if (!late && !cancelled) {
          EXPECT_EQ(sequence.tokens.size(), 15u);
        }
        if (cancelled) {
          EXPECT_LE(sequence.tokens.size(), 12u);
        }
      }
    }
    EXPECT_EQ(inference.blocks().used, 0);
    EXPECT_EQ(inference.blocks().free_slots, 8);
  });
}

TEST(Batching, PrioritiesAreServedFirstAndTheQueueHasABound) {
  Case test_case{tiny_llama(), Dtype::kF32};
  with_engine(test_case, [&](Engine& engine) {
    InferenceEngine inference(
        engine.model(),
        {.max_sequences = 1, .max_waiting_requests = 4, .block_tokens = 4, .kv_cache_tokens = 64});
    struct Order : RequestSink {
      std::vector<RequestId> ended;
      void on_finished(RequestResult result) override { ended.push_back(result.id); }
    } sink;
    for (std::int64_t priority : {5, 1, 3, 1}) {
      EXPECT_TRUE(inference.accepts());
      Request request = request_for(3);
      request.prompt = {1, 2};
      request.priority = priority;
      inference.submit(request);
    }
    EXPECT_FALSE(inference.accepts());
    inference.run(sink);
    EXPECT_EQ(sink.ended, (std::vector<RequestId>{1, 3, 2, 0}));
    EXPECT_TRUE(inference.accepts());
  });
}

TEST(Batching, RequestsThatCanNeverRunAreRefusedWithTheNumbers) {
  Case test_case{tiny_llama(), Dtype::kF32};
  with_engine(test_case, [&](Engine& engine) {
    InferenceEngine inference(engine.model(),
                              {.max_sequences = 2, .block_tokens = 4, .kv_cache_tokens = 20});
    Request request = request_for(16);
    request.prompt = {1, 2, 3, 4, 5, 6};
    expect_error(ErrorKind::kInput, {"21 tokens", "has 20", "--kv-cache-tokens"},
                 [&] { inference.submit(request); });
    request.max_new_tokens = 15;
    inference.submit(request);
    request.max_new_tokens = 1;
    request.n = 3;
    expect_error(ErrorKind::kInput, {"3 sequences", "at most 2"},
                 [&] { inference.submit(request); });
    RequestSink sink;
    inference.run(sink);
  });
}

TEST(Batching, ReplicasAndExpertsAnswerAsOneRank) {
  for (const Case& layout :
       {Case{tiny_llama(), Dtype::kF64, 1, 1, 1, 3}, Case{tiny_llama(), Dtype::kF64, 2, 1, 2, 2},
        Case{mixtral_like(), Dtype::kF64, 1, 1, 1, 2, 2},
        Case{mixtral_like(), Dtype::kF64, 2, 1, 1, 2, 4},
        Case{mixtral_like(), Dtype::kF64, 1, 1, 2, 2, 2}}) {
    for (const Request& like : {request_for(7), sampled(7)}) {
      // Unequal lengths: some replicas are idle before others.
      Request other = like;
      std::vector<Request> requests = requests_for(mixed_prompts(layout.model, 7), other);
      for (std::size_t i = 0; i < requests.size(); ++i) {
        requests[i].max_new_tokens = 1 + static_cast<std::int64_t>(i * i % 9);
        requests[i].min_new_tokens = 0;
        if (i == 4) requests[i].n = 2;
      }
      SCOPED_TRACE(concat(layout.model.family, " tp ", layout.tp, " pp ", layout.pp, " dp ",
                          layout.dp, " ep ", layout.ep, " temperature ",
                          like.sampling.temperature));
      std::vector<RequestResult> one = run_requests({layout.model}, requests);
      std::vector<RequestResult> many =
          run_requests(layout, requests, {.max_step_tokens = 9, .block_tokens = 4});
      ASSERT_EQ(many.size(), one.size());
      for (std::size_t i = 0; i < one.size(); ++i) {
        SCOPED_TRACE(concat("request ", i));
        EXPECT_EQ(many[i].id, static_cast<RequestId>(i));
        expect_near(many[i].sequences, one[i].sequences, 1e-10);
      }
    }
  }
}

TEST(Batching, WeightsAreThoseOfTheStoreAndCarryTheirVersion) {
  Case test_case{tiny_llama(), Dtype::kF32};
  with_engine(test_case, [&](Engine& engine) {
    RankModel& model = engine.model();
    InferenceEngine inference(model, {.block_tokens = 4, .kv_cache_tokens = 100});
    Request request = request_for(8);
    request.prompt = make_prompts(test_case.model, {9}).front();
    RequestResult before = generate(inference, {&request, 1}).at(0);
    inference.submit(request);
    RequestSink sink;
    for (int i = 0; i < 3; ++i) inference.step(sink);
    inference.pause(sink);
    EXPECT_TRUE(inference.step(sink));  // there is work, but none is done
    std::int64_t steps = inference.statistics().steps;
    inference.step(sink);
    EXPECT_EQ(inference.statistics().steps, steps);
    // Training changes the parameters where they lie.
    for (const Param* param : model.store().params()) {
      WeightLease lease = model.ctx().weights.use(*param);
      WeightLease stored = model.store().local_value(*param);
      EXPECT_EQ(lease.view.data, stored.view.data) << param->name;
      if (param->name != "decoder.final_layernorm.weight") continue;
      auto* values = stored.view.as<float>();
      for (std::int64_t i = 0; i < stored.view.numel(); ++i) values[i] *= i % 2 == 0 ? 3.0F : -1.0F;
    }
    inference.set_weights_version(7);
    inference.resume();
    struct Last : RequestSink {
      RequestResult result;
      void on_finished(RequestResult ended) override { result = std::move(ended); }
    } last;
    inference.run(last);
    const std::vector<std::int64_t>& versions = last.result.sequences.at(0).weights_versions;
    ASSERT_EQ(versions.size(), 8u);
    EXPECT_EQ(versions.front(), 0);
    EXPECT_EQ(versions.back(), 7);
    EXPECT_TRUE(std::ranges::is_sorted(versions));
    // Cached prefixes of the old weights are gone, and new results are those of a new engine.
    RequestResult now = generate(inference, {&request, 1}).at(0);
    EXPECT_EQ(now.cached_tokens, 0);
    EXPECT_NE(now.sequences[0].logprobs, before.sequences[0].logprobs);
    InferenceEngine fresh(model, {.block_tokens = 4, .kv_cache_tokens = 100});
    expect_near(now.sequences, generate(fresh, {&request, 1}).at(0).sequences, 0);
  });
}

// Random requests in a small engine: nothing leaks, nobody starves, and results are those alone.
TEST(Batching, RandomTrafficKeepsTheInvariant) {
  Case test_case{tiny_llama(), Dtype::kF64};
  Prompts prompts = mixed_prompts(test_case.model, 40);
  std::vector<Request> requests;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    std::uint32_t bits = philox({static_cast<std::uint32_t>(i), 1, 2, 3}, 11)[0];
    Request request = bits % 3 == 0 ? sampled(1 + bits % 12) : request_for(1 + bits % 12, bits % 2);
    request.prompt = prompts[i];
    request.stream = static_cast<std::int64_t>(i);
    request.priority = bits / 7 % 3;
    request.end_tokens = {static_cast<std::int32_t>(bits % 53)};
    requests.push_back(request);
  }
  std::vector<SequenceResult> expected = alone(test_case, requests);
  with_engine(test_case, [&](Engine& engine) {
    InferenceEngine inference(engine.model(), {.max_sequences = 5,
                                               .max_step_tokens = 11,
                                               .block_tokens = 2,
                                               .kv_cache_tokens = 60,
                                               .overlap = true});
    struct Keep : RequestSink {
      std::map<RequestId, SequenceResult> results;
      void on_finished(RequestResult result) override {
        results[result.id] = std::move(result.sequences.at(0));
      }
    } sink;
    std::size_t next = 0;
    bool busy = true;
    while (busy || next < requests.size()) {
      if (next < requests.size()) inference.submit(requests[next++]);
      busy = inference.step(sink);
      BlockUsage usage = inference.blocks();
      ASSERT_EQ(usage.free + usage.cached + usage.used, usage.total);
    }
    std::vector<SequenceResult> results;
    for (auto& [id, result] : sink.results) results.push_back(std::move(result));
    expect_near(results, expected, 1e-11);
    EXPECT_EQ(inference.blocks().used, 0);
  });
}

}  // namespace
}  // namespace bev
