// Tokens that alone may be selected, sequences that may not be completed, and log-probabilities of
// given tokens, against whole forwards.
#include <algorithm>
#include <set>

#include "tests/infer/engine_rig.h"

namespace bev {
namespace {

using namespace test;

const std::vector<Case>& layouts() {
  static const std::vector<Case> all = {{tiny_llama()},
                                        {tiny_llama(), Dtype::kF64, 2},
                                        {tiny_llama(), Dtype::kF64, 1, 1, 2},
                                        {tiny_llama(), Dtype::kF64, 1, 1, 1, 2}};
  return all;
}

std::string name_of(const Case& test_case) {
  return concat("tp ", test_case.tp, " pp ", test_case.pp, " dp ", test_case.dp);
}

TEST(AllowedTokens, AloneAreSelectedAsIfAllOthersWereImpossible) {
  const std::vector<std::int32_t> allowed = {40, 3, 17, 52, 3};
  for (const Case& test_case : layouts()) {
    for (double temperature : {0.0, 3.0}) {
      Request plain = request_for(8, temperature);
      plain.prompt = make_prompts(test_case.model, {5}).front();
      plain.sampling.top_p = 0.95;
      plain.sampling.logit_bias = {{17, 0.5F}, {9, 100.0F}};
      Request request = plain;
      request.sampling.allowed_tokens = allowed;
      request.sampling.repetition_penalty = 1.3;
      request.sampling.frequency_penalty = 0.2;
      std::vector<SequenceResult> results =
          first_sequences(run_requests(test_case, {request, plain}, {.overlap = true}));
      with_engine({test_case.model}, [&](Engine& engine) {
        std::vector<std::int32_t> tokens = request.prompt;
        for (std::size_t i = 0; i < 8; ++i) {
          SCOPED_TRACE(concat(name_of(test_case), " temperature ", temperature, ", token ", i));
          std::vector<double> logits = last_logits(engine.model(), tokens);
          std::vector<double> masked(logits.size(), -INFINITY);
          for (std::int32_t token : allowed) {
            const auto at = static_cast<std::size_t>(token);
            double x = logits[at] + (token == 17 ? 0.5 : 0);
            const bool seen = std::ranges::find(tokens, token) != tokens.end();
            if (seen) x = x > 0 ? x / 1.3 : x * 1.3;
            const auto times =
                std::count(tokens.begin() + std::ssize(request.prompt), tokens.end(), token);
            masked[at] = x - 0.2 * static_cast<double>(times);
          }
          SamplingRule rule = sampling_rule(request.sampling, {0, std::ssize(tokens)});
          EXPECT_EQ(results[0].tokens[i], select_token(masked, rule));
          EXPECT_NEAR(results[0].logprobs[i],
                      log_softmax(logits)[static_cast<std::size_t>(results[0].tokens[i])], 1e-10);
          tokens.push_back(results[0].tokens[i]);
        }
      });
      // The neighbour has its bias.
      EXPECT_EQ(std::ranges::count(results[1].tokens, 9), 8);
    }
  }
}

TEST(AllowedTokens, NoneThatIsLeftIsAnErrorOfTheSequence) {
  Request request = request_for(4);
  request.prompt = {1, 2};
  request.sampling.allowed_tokens = {5};
  request.rules.banned = {{5, 5}};
  Request plain = request;
  plain.rules.banned.clear();
  auto results = first_sequences(run_requests({tiny_llama()}, {request, plain}));
  EXPECT_EQ(results[0].tokens, std::vector<std::int32_t>{5});
  EXPECT_EQ(results[0].finish, FinishReason::kError);
  EXPECT_EQ(results[1].tokens, (std::vector<std::int32_t>{5, 5, 5, 5}));
}

TEST(BannedSequences, AreNeverCompleted) {
  for (const Case& test_case : layouts()) {
    SCOPED_TRACE(name_of(test_case));
    for (bool overlap : {false, true}) {
      auto tokens_of = [&](const Request& request) {
        return run_requests(test_case, {request, request}, {.overlap = overlap})[1]
            .sequences[0]
            .tokens;
      };
      Request request = request_for(10);
      request.prompt = make_prompts(test_case.model, {6}).front();
      const std::vector<std::int32_t> free = tokens_of(request);
      // Across the end of the prompt, within the output, and one that never begins.
      request.rules.banned = {{request.prompt.back(), free[0]}, {51, 50, free[0]}};
      EXPECT_NE(tokens_of(request)[0], free[0]);
      request.rules.banned = {{free[2], free[3], free[4]}};
      std::vector<std::int32_t> changed = tokens_of(request);
      EXPECT_TRUE(std::equal(changed.begin(), changed.begin() + 4, free.begin()));
      EXPECT_EQ(std::ranges::search(changed, request.rules.banned[0]).size(), 0u);
      // One token: an edit that needs no history.
      request.rules.banned = {{free[3]}, {free[5]}};
      EXPECT_FALSE(request.needs_last_token());
      changed = tokens_of(request);
      EXPECT_EQ(std::ranges::count(changed, free[3]) + std::ranges::count(changed, free[5]), 0);
      request.rules.banned = {{free[3], free[4]}};
      EXPECT_TRUE(request.needs_last_token());
    }
  }
}

TEST(BannedSequences, HoldForBeamsAndForSequencesOfAPrompt) {
  const Case test_case{tiny_llama()};
  Request beams = request_for(6);
  beams.prompt = make_prompts(test_case.model, {5}).front();
  beams.beams = BeamOptions{.num_beams = 4, .num_return_sequences = 4};
  const std::vector<std::int32_t> free = run_requests(test_case, {beams})[0].sequences[0].tokens;
  beams.rules.banned = {{free[1], free[2]}, {free[4]}};
  std::vector<SequenceResult> found = run_requests(test_case, {beams})[0].sequences;
  ASSERT_EQ(found.size(), 4u);
  for (const SequenceResult& beam : found) {
    EXPECT_EQ(std::ranges::search(beam.tokens, beams.rules.banned[0]).size(), 0u);
    EXPECT_EQ(std::ranges::count(beam.tokens, free[4]), 0);
  }
  beams.sampling.allowed_tokens = {free[1], free[2], 8};
  found = run_requests(test_case, {beams})[0].sequences;
  for (const SequenceResult& beam : found) {
    for (std::int32_t token : beam.tokens) {
      EXPECT_TRUE(token == free[1] || token == free[2] || token == 8);
    }
    EXPECT_EQ(std::ranges::search(beam.tokens, beams.rules.banned[0]).size(), 0u);
  }
  Request many = request_for(12, 2);
  many.prompt = beams.prompt;
  many.n = 4;
  many.sampling.allowed_tokens = {1, 2, 3};
  many.rules.banned = {{1, 2}, {2, 3}, {3, 1}, {2, 1}};
  std::set<std::vector<std::int32_t>> different;
  found = run_requests(test_case, {many})[0].sequences;
  for (const SequenceResult& sequence : found) {
    different.insert(sequence.tokens);
    for (std::size_t i = 0; i < 12; ++i) {
      const std::int32_t token = sequence.tokens[i], before = i > 0 ? sequence.tokens[i - 1] : -1;
      EXPECT_TRUE(token >= 1 && token <= 3);
      EXPECT_TRUE(before < 0 || token == before || (before == 1 && token == 3) ||
                  (before == 3 && token == 2))
          << before << " " << token;
    }
  }
  EXPECT_GE(different.size(), 3u);
}

TEST(LogprobTokens, AreThoseOfWholeForwardsInTheirOrder) {
  for (const Case& test_case : layouts()) {
    SCOPED_TRACE(name_of(test_case));
    Request asks = request_for(5);
    asks.prompt = make_prompts(test_case.model, {7}).front();
    Request both = asks, none = asks;
    asks.logprob_tokens = {31, 2, 52, 2};
    both.logprob_tokens.resize(53);
    for (std::int32_t i = 0; i < 53; ++i) both.logprob_tokens[static_cast<std::size_t>(i)] = i;
    both.top_logprobs = 4;
    struct Events : RequestSink {
      std::vector<std::vector<TopLogprob>> asked;
      void on_token(const TokenEvent& event) override {
        if (event.request == 0) asked.emplace_back(event.asked.begin(), event.asked.end());
      }
    };
    with_engine(test_case, [&](Engine& engine) {
      const std::vector<Request> requests = {asks, none, both};
      InferenceEngine inference(engine.model(), options_for(requests));
      Events events;
      std::vector<RequestResult> results = generate(inference, requests, &events);
      if (engine.model().mesh().world().rank() != 0) return;
      EXPECT_TRUE(results[1].sequences[0].asked_logprobs.empty());
      const SequenceResult &few = results[0].sequences[0], &all = results[2].sequences[0];
      ASSERT_EQ(few.asked_logprobs.size(), 5u);
      ASSERT_EQ(all.asked_logprobs.size(), 5u);
      EXPECT_TRUE(few.top_logprobs.empty());
      ASSERT_EQ(events.asked.size(), 5u);
      for (std::size_t i = 0; i < 5; ++i) {
        ASSERT_EQ(few.asked_logprobs[i].size(), 4u);
        ASSERT_EQ(events.asked[i].size(), 4u);
        ASSERT_EQ(all.asked_logprobs[i].size(), 53u);
        for (std::size_t k = 0; k < 4; ++k) {
          const TopLogprob& entry = few.asked_logprobs[i][k];
          EXPECT_EQ(entry.token, asks.logprob_tokens[k]);
          EXPECT_EQ(events.asked[i][k].logprob, entry.logprob);
          EXPECT_NEAR(all.asked_logprobs[i][static_cast<std::size_t>(entry.token)].logprob,
                      entry.logprob, 1e-12);
        }
        // A token has one number, wherever it is reported.
        auto own = static_cast<std::size_t>(all.tokens[i]);
        EXPECT_EQ(all.asked_logprobs[i][own].logprob, all.logprobs[i]);
        ASSERT_EQ(all.top_logprobs[i].size(), 4u);
        for (const TopLogprob& top : all.top_logprobs[i]) {
          EXPECT_EQ(all.asked_logprobs[i][static_cast<std::size_t>(top.token)].logprob,
                    top.logprob);
        }
      }
    });
    std::vector<RequestResult> results = run_requests(test_case, {both});
    with_engine({test_case.model}, [&](Engine& engine) {
      std::vector<std::int32_t> tokens = both.prompt;
      for (std::size_t i = 0; i < 5; ++i) {
        const std::vector<double> p = log_softmax(last_logits(engine.model(), tokens));
        for (std::size_t token = 0; token < p.size(); ++token) {
          EXPECT_NEAR(results[0].sequences[0].asked_logprobs[i][token].logprob, p[token], 1e-10);
        }
        tokens.push_back(results[0].sequences[0].tokens[i]);
      }
    });
  }
}

TEST(AllowedTokens, IdsOutsideOfTheVocabularyAreErrors) {
  auto refused = [](const std::vector<std::string>& parts, ErrorKind kind, auto change) {
    Request request = request_for(3);
    request.prompt = {1};
    change(request);
    expect_error(kind, parts, [&] { check_request(tiny_llama(), request, "request 0"); });
  };
  constexpr ErrorKind kInput = ErrorKind::kInput, kConfig = ErrorKind::kConfig;
  refused({"allowed tokens", "53", "vocabulary of 53"}, kInput, [](Request& request) {
    request.sampling.allowed_tokens = {1, 53};
  });
  refused({"banned tokens", "-1"}, kInput, [](Request& request) {
    request.rules.banned = {{1}, {2, -1}};
  });
  refused({"banned tokens", "empty"}, kConfig, [](Request& request) {
    request.rules.banned = {{1}, {}};
  });
  refused({"logprob tokens", "99"}, kInput,
          [](Request& request) { request.logprob_tokens = {99}; });
  refused({"logprob tokens", "129", "128"}, kConfig,
          [](Request& request) { request.logprob_tokens.assign(129, 1); });
  refused({"prompt top logprobs", "21"}, kConfig, [](Request& request) {
    request.prompt_logprobs = true;
    request.prompt_top_logprobs = 21;
  });
  refused({"prompt top logprobs", "prompt_logprobs"}, kConfig,
          [](Request& request) { request.prompt_top_logprobs = 1; });
}

}  // namespace
}  // namespace bev
