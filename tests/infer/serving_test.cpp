// What a server relies on: when it hears of what, that closed connections and bad sequences leave
// nothing behind, and that neighbours do not notice.
#include <algorithm>
#include <map>
#include <set>

#include "base/clock.h"
#include "tests/infer/engine_rig.h"

namespace bev {
namespace {

using namespace test;

// Notes what it hears, and in which step.
struct Journal : RequestSink {
  struct Heard {
    std::vector<std::int64_t> started, tokens;  // steps
    std::map<std::int64_t, SequenceResult> sequences;
    std::int64_t finished = -1;
  };
  std::int64_t step = 0;
  std::map<RequestId, Heard> requests;
  std::set<RequestId> beams;  // whose tokens come with the result
  std::vector<RequestResult> results;

  void on_started(RequestId id) override {
    Heard& at = requests[id];
    EXPECT_TRUE(at.started.empty() && at.tokens.empty());
    at.started.push_back(step);
  }
  void on_token(const TokenEvent& event) override {
    Heard& at = requests[event.request];
    EXPECT_EQ(at.started.size(), 1u);
    EXPECT_EQ(at.finished, -1);
    at.tokens.push_back(step);
    SequenceResult& sequence = at.sequences[event.index];
    sequence.tokens.push_back(event.token);
    sequence.logprobs.push_back(event.logprob);
    sequence.weights_versions.push_back(event.weights_version);
    sequence.top_logprobs.emplace_back(event.top.begin(), event.top.end());
  }
  void on_finished(RequestResult result) override {
    Heard& at = requests[result.id];
    EXPECT_EQ(at.finished, -1);
    at.finished = step;
    for (const SequenceResult& sequence : result.sequences) {
      if (beams.contains(result.id)) break;
      const SequenceResult& told = at.sequences[sequence.index];
      EXPECT_EQ(told.tokens, sequence.tokens);
      EXPECT_EQ(told.logprobs, sequence.logprobs);
      EXPECT_EQ(told.weights_versions, sequence.weights_versions);
      for (std::size_t i = 0; i < sequence.top_logprobs.size(); ++i) {
        ASSERT_EQ(told.top_logprobs[i].size(), sequence.top_logprobs[i].size());
        EXPECT_EQ(told.top_logprobs[i].front().logprob, sequence.top_logprobs[i].front().logprob);
      }
    }
    results.push_back(std::move(result));
  }
  void run(InferenceEngine& engine) {
    while (engine.step(*this)) ++step;
  }
};

TEST(Serving, TokensOfAllReplicasComeStepByStep) {
  for (const Case& layout :
       {Case{tiny_llama()}, Case{tiny_llama(), Dtype::kF64, 1, 1, 1, 3},
        Case{tiny_llama(), Dtype::kF64, 2, 1, 1, 2}, Case{tiny_llama(), Dtype::kF64, 1, 1, 2, 2}}) {
    SCOPED_TRACE(concat("tp ", layout.tp, " pp ", layout.pp, " dp ", layout.dp));
    Request like = request_for(9, 0.8);
    like.top_logprobs = 2;
    like.prompt_logprobs = true;
    like.prompt_top_logprobs = 20;  // more than fits into a short message
    std::vector<Request> requests =
        requests_for(make_prompts(layout.model, {4, 9, 1, 7, 12}), like);
    requests[3].n = 2;
    std::vector<RequestResult> expected = run_requests({layout.model}, requests);
    with_engine(layout, [&](Engine& engine) {
      InferenceEngine inference(engine.model(), {.block_tokens = 4, .kv_cache_tokens = 400});
      for (const Request& request : requests) inference.submit(request);
      Journal journal;
      journal.run(inference);
      std::ranges::sort(journal.results, {}, &RequestResult::id);
      const bool first = engine.model().mesh().world().rank() == 0;
      if (first) {
        ASSERT_EQ(journal.results.size(), requests.size());
      }
      for (const RequestResult& result : journal.results) {
        const Journal::Heard& heard = journal.requests[result.id];
        const RequestResult& one = expected[static_cast<std::size_t>(result.id)];
        expect_near(result.sequences, one.sequences, 1e-10);
        ASSERT_EQ(result.prompt_top_logprobs.size(), one.prompt_top_logprobs.size());
        for (std::size_t at = 0; at < one.prompt_top_logprobs.size(); ++at) {
          EXPECT_NEAR(result.prompt_top_logprobs[at][19].logprob,
                      one.prompt_top_logprobs[at][19].logprob, 1e-10);
        }
        // A token of each sequence in every step from the first on.
        const auto width = static_cast<std::int64_t>(result.sequences.size());
        EXPECT_EQ(heard.started, std::vector<std::int64_t>{0});
        ASSERT_EQ(std::ssize(heard.tokens), 9 * width);
        for (std::int64_t i = 0; i < 9 * width; ++i) {
          EXPECT_EQ(heard.tokens[static_cast<std::size_t>(i)], i / width);
        }
        EXPECT_EQ(heard.finished, 8);
      }
    });
  }
}

TEST(Serving, StartsAreToldWhenARequestNoLongerWaits) {
  with_engine({tiny_llama(), Dtype::kF32}, [&](Engine& engine) {
    InferenceEngine inference(engine.model(),
                              {.max_sequences = 2, .block_tokens = 4, .kv_cache_tokens = 100});
    Request request = request_for(4, 1);
    request.prompt = {1, 2, 3};
    Journal journal;
    for (std::int64_t n : {1, 2, 1, 1}) {
      request.n = n;
      inference.submit(request);
    }
    inference.cancel(3);
    journal.run(inference);
    EXPECT_EQ(journal.requests[0].started, std::vector<std::int64_t>{0});
    EXPECT_EQ(journal.requests[1].started, std::vector<std::int64_t>{4});
    EXPECT_EQ(journal.requests[2].started, std::vector<std::int64_t>{8});
    EXPECT_TRUE(journal.requests[3].started.empty());
    EXPECT_EQ(journal.results.size(), 4u);
  });
}

struct Closing {
  const char* name;
  std::int64_t after = 0;  // steps
  std::int64_t n = 1;
  bool beams = false;
  std::size_t prompt = 20;
  std::int64_t tokens = 30;
  bool scored = false;
};

// Another request keeps its one block and goes on as if nothing had happened.
void expect_blocks_freed(const Closing& closing, bool overlap, bool prefix_cache) {
  SCOPED_TRACE(concat(closing.name, overlap ? ", overlap" : "", prefix_cache ? ", cache" : ""));
  const Case test_case{tiny_llama(), Dtype::kF32};
  with_engine(test_case, [&](Engine& engine) {
    InferenceEngine inference(engine.model(), {.max_sequences = 5,
                                               .max_step_tokens = 7,
                                               .block_tokens = 16,
                                               .kv_cache_tokens = 640,
                                               .prefix_cache = prefix_cache,
                                               .overlap = overlap});
    Journal journal;
    Request stays = request_for(14);
    stays.prompt = {3, 4};
    inference.submit(stays);
    Request request = request_for(closing.tokens, 1);
    request.prompt = make_prompts(test_case.model, {closing.prompt}).front();
    request.n = closing.n;
    if (closing.beams) {
      request.beams = BeamOptions{.num_beams = 4, .num_return_sequences = 2};
      request.sampling.temperature = 0;
    }
    request.prompt_logprobs = closing.scored;
    RequestId id = inference.submit(request);
    if (closing.beams) journal.beams = {id};
    for (std::int64_t i = 0; i < closing.after; ++i) inference.step(journal);
    inference.cancel(id);
    inference.cancel(id);
    inference.step(journal);
    inference.step(journal);
    EXPECT_GE(journal.requests[id].finished, 0);
    EXPECT_EQ(inference.blocks().used, 1);
    EXPECT_EQ(inference.blocks().free_slots, 4);
    EXPECT_EQ(inference.waiting(), 0);
    EXPECT_EQ(inference.running(), 1);
    inference.cancel(id);
    journal.run(inference);
    EXPECT_EQ(inference.blocks().used, 0);
    ASSERT_EQ(journal.results.size(), 2u);
    std::ranges::sort(journal.results, {}, &RequestResult::id);
    EXPECT_EQ(journal.results[0].sequences[0].tokens,
              run_requests(test_case, {stays})[0].sequences[0].tokens);
    const bool finished = closing.tokens == 1;
    for (const SequenceResult& sequence : journal.results[1].sequences) {
      EXPECT_EQ(sequence.finish, finished ? FinishReason::kLength : FinishReason::kCancelled);
    }
  });
}

TEST(Serving, AClosedConnectionFreesItsBlocksWithinTwoSteps) {
  for (const Closing& closing :
       {Closing{"before it begins"}, Closing{"within the prompt", 2},
        Closing{.name = "within a scored prompt", .after = 2, .scored = true},
        Closing{"at work", 8}, Closing{.name = "just finished", .after = 5, .tokens = 1},
        Closing{"sequences within the prompt", 2, 3}, Closing{"sequences", 8, 3},
        Closing{"beams within the prompt", 2, 1, true}, Closing{"beams", 8, 1, true}}) {
    for (bool overlap : {false, true}) {
      for (bool prefix_cache : {false, true}) expect_blocks_freed(closing, overlap, prefix_cache);
    }
  }
}

TEST(Serving, APreemptedRequestIsCancelledWithWhatItHas) {
  const Case test_case{tiny_llama(), Dtype::kF32};
  with_engine(test_case, [&](Engine& engine) {
    // Room for one of both requests as they end.
    InferenceEngine inference(engine.model(),
                              {.max_sequences = 4, .block_tokens = 2, .kv_cache_tokens = 24});
    Journal journal;
    Request request = request_for(18);
    request.prompt = {1, 2, 3, 4};
    RequestId first = inference.submit(request), second = inference.submit(request);
    while (inference.statistics().preemptions == 0) inference.step(journal);
    ASSERT_EQ(inference.waiting(), 1);
    const std::size_t had = journal.requests[second].tokens.size();
    EXPECT_GE(had, 5u);
    inference.cancel(second);
    inference.step(journal);
    EXPECT_GE(journal.requests[second].finished, 0);
    EXPECT_EQ(journal.results.at(0).sequences.at(0).tokens.size(), had);
    EXPECT_EQ(inference.waiting(), 0);
    journal.run(inference);
    EXPECT_EQ(journal.requests[first].tokens.size(), 18u);
    EXPECT_EQ(inference.blocks().used, 0);
  });
}

TEST(Serving, WorldRankZeroCancelsRequestsOfOtherReplicas) {
  with_engine({tiny_llama(), Dtype::kF32, 1, 1, 1, 2}, [&](Engine& engine) {
    InferenceEngine inference(engine.model(), {.block_tokens = 4, .kv_cache_tokens = 200});
    const bool first = engine.model().mesh().world().rank() == 0;
    Journal journal;
    for (int i = 0; i < 4; ++i) {
      Request request = request_for(40);
      request.prompt = {1, 2, 3};
      if (i == 3) request.deadline = monotonic_seconds() + (first ? 1e-3 : 1e9);
      inference.submit(request);
    }
    for (int i = 0; i < 5; ++i) inference.step(journal);
    if (first) inference.cancel(1);
    inference.step(journal);
    if (first) {
      EXPECT_GE(journal.requests[1].finished, 0);
    } else {
      inference.cancel(0);  // has no say
    }
    journal.run(inference);
    EXPECT_EQ(inference.blocks().used, 0);
    std::ranges::sort(journal.results, {}, &RequestResult::id);
    for (const RequestResult& result : journal.results) {
      const auto reason = result.sequences.at(0).finish;
      EXPECT_EQ(reason, result.id == 1   ? FinishReason::kCancelled
                        : result.id == 3 ? FinishReason::kDeadline
                                         : FinishReason::kLength);
    }
    EXPECT_EQ(journal.results.size(), first ? 4u : 2u);
  });
}

void poison_token(Engine& engine, std::int64_t token) {
  for (const Param* param : engine.model().store().params()) {
    if (param->name != "embedding.word_embeddings.weight") continue;
    WeightLease value = engine.model().store().local_value(*param);
    const std::int64_t width = value.view.shape[1];
    visit_float(value.view.dtype, [&](auto zero) {
      std::fill_n(value.view.as<decltype(zero)>() + token * width, width,
                  static_cast<decltype(zero)>(NAN));
    });
  }
}

// The bad sequence ends with an error; those that ran next to it, and those that get its blocks
// afterwards, give what they give without it.
TEST(Serving, NeighboursDoNotNoticeASequenceThatIsNotFinite) {
  for (const Case& test_case :
       {Case{windowed_llama(), Dtype::kF32}, Case{tiny_llama(), Dtype::kBf16},
        Case{tiny_deepseek(), Dtype::kF32}, Case{mixtral_like(), Dtype::kF32}}) {
    constexpr std::int32_t kBad = 7;
    std::vector<Request> good =
        requests_for(make_prompts(test_case.model, {5, 9, 3, 17, 6}), request_for(10, 0.7));
    for (Request& request : good) {
      std::ranges::replace(request.prompt, kBad, kBad + 1);
      request.sampling.logit_bias = {{kBad, -INFINITY}};  // nor in their outputs
    }
    for (bool overlap : {false, true}) {
      SCOPED_TRACE(concat(test_case.model.family, overlap ? ", overlap" : ""));
      auto run = [&](Engine& engine, std::int64_t bad) {
        InferenceEngine inference(engine.model(), {.max_sequences = 4,
                                                   .max_step_tokens = 24,
                                                   .block_tokens = 8,
                                                   .kv_cache_tokens = 96,
                                                   .overlap = overlap});
        Journal journal;
        std::vector<RequestId> kept;
        for (const Request& request : good) {
          if (bad-- > 0) {
            Request wrong = request;
            wrong.prompt.assign(7, kBad);
            inference.submit(wrong);
          }
          kept.push_back(inference.submit(request));
        }
        journal.run(inference);
        EXPECT_EQ(inference.blocks().used, 0);
        std::vector<SequenceResult> results;
        for (RequestResult& result : journal.results) {
          const bool is_good = std::ranges::find(kept, result.id) != kept.end();
          EXPECT_EQ(result.sequences[0].finish,
                    is_good ? FinishReason::kLength : FinishReason::kError);
          EXPECT_EQ(result.sequences[0].error.empty(), is_good);
        }
        for (RequestId id : kept) {
          auto found = std::ranges::find(journal.results, id, &RequestResult::id);
          results.push_back(std::move(found->sequences.at(0)));
        }
        return results;
      };
      with_engine(test_case, [&](Engine& engine) {
        poison_token(engine, kBad);
        std::vector<SequenceResult> without = run(engine, 0);
        const double tolerance = test_case.dtype == Dtype::kF32 ? 1e-4 : 0.1;
        expect_near(run(engine, 5), without, tolerance);
      });
    }
  }
}

TEST(Serving, BeamsThatAreNotFiniteEndWithAnError) {
  with_engine({tiny_llama(), Dtype::kF32}, [&](Engine& engine) {
    poison_token(engine, 7);
    InferenceEngine inference(engine.model(), {.block_tokens = 4, .kv_cache_tokens = 200});
    Request beams = request_for(5);
    beams.prompt = {1, 2};
    beams.beams = BeamOptions{.num_beams = 3, .num_return_sequences = 3};
    // The last of the beams goes on with the bad token.
    beams.sampling.logit_bias = {{4, 100}, {5, 99}, {7, 98}};
    Request plain = request_for(5);
    plain.prompt = {1, 2};
    plain.sampling.logit_bias = {{7, -INFINITY}};
    Journal journal;
    journal.beams = {inference.submit(beams)};
    inference.submit(plain);
    inference.run(journal);
    ASSERT_EQ(journal.results.size(), 2u);
    std::ranges::sort(journal.results, {}, &RequestResult::id);
    for (const SequenceResult& beam : journal.results[0].sequences) {
      EXPECT_EQ(beam.finish, FinishReason::kError);
      EXPECT_NE(beam.error.find("NaN"), std::string::npos);
    }
    EXPECT_EQ(journal.results[1].sequences[0].finish, FinishReason::kLength);
    EXPECT_EQ(inference.blocks().used, 0);
    EXPECT_EQ(inference.blocks().free_slots, 256);
    beams.max_new_tokens = 0;
    expect_error(ErrorKind::kConfig, {"--max-new-tokens", "beams"},
                 [&] { inference.submit(beams); });
  });
}

}  // namespace
}  // namespace bev
