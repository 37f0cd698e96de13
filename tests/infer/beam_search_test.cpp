// Beam search against Hugging Face transformers: tests/golden/make_beams.py.
#include "infer/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;
using Logits = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Logits after tokens .., a, b with tables of R rows: last[b % R] + previous[a % R].
struct TableModel {
  std::vector<std::vector<double>> last, previous;
  double unit = 1;

  Logits logits(const Ids& tokens) const {
    auto row_of = [&](std::int32_t token) { return static_cast<std::size_t>(token) % last.size(); };
    Logits row = last[row_of(tokens.back())];
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (tokens.size() > 1) row[i] += previous[row_of(tokens.rbegin()[1])][i];
      row[i] /= unit;
    }
    return row;
  }
};

std::vector<BeamSearch::Child> advance(BeamSearch& search, const std::vector<Logits>& rows) {
  std::vector<std::span<const double>> spans(rows.begin(), rows.end());
  return search.advance(spans);
}

std::vector<BeamSearch::Hypothesis> run(const BeamSearchArgs& args, const TableModel& model) {
  BeamSearch search(args);
  std::vector<Ids> beams = {args.prompt};
  while (!beams.empty()) {
    std::vector<Logits> rows;
    for (const Ids& beam : beams) rows.push_back(model.logits(beam));
    std::vector<Ids> next;
    for (const BeamSearch::Child& child : advance(search, rows)) {
      next.push_back(beams.at(static_cast<std::size_t>(child.parent)));
      next.back().push_back(child.token);
    }
    beams = std::move(next);
  }
  return search.finish();
}

EarlyStopping early_stopping_of(const std::string& name) {
  if (name == "never") return EarlyStopping::kNever;
  return name == "true" ? EarlyStopping::kTrue : EarlyStopping::kFalse;
}

BeamSearchArgs args_of(const Json& test) {
  BeamSearchArgs args;
  BeamOptions& options = args.options;
  test.at("num_beams").get_to(options.num_beams);
  test.at("num_return_sequences").get_to(options.num_return_sequences);
  test.at("length_penalty").get_to(options.length_penalty);
  options.early_stopping = early_stopping_of(test.at("early_stopping"));
  test.at("no_repeat_ngram_size").get_to(args.rules.no_repeat_ngram_size);
  test.at("forced_bos_token").get_to(args.rules.forced_bos_token);
  test.at("forced_eos_token").get_to(args.rules.forced_eos_token);
  test.at("prompt").get_to(args.prompt);
  test.at("end_tokens").get_to(args.end_tokens);
  test.at("max_new_tokens").get_to(args.max_new_tokens);
  test.at("min_new_tokens").get_to(args.min_new_tokens);
  test.at("repetition_penalty").get_to(args.repetition_penalty);
  for (const Json& edit : test.at("logit_bias")) {
    float bias = edit[1].is_null() ? -static_cast<float>(kInfinity) : edit[1].get<float>();
    args.logit_bias.push_back({edit[0], bias});
  }
  return args;
}

void compare(const std::vector<BeamSearch::Hypothesis>& found, const Json& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(found[i].tokens, expected[i].at("tokens").get<Ids>());
    double score = expected[i].at("score");
    EXPECT_NEAR(found[i].score, score, 1e-5 * std::max(1.0, std::abs(score)));
    EXPECT_EQ(found[i].ended, expected[i].at("ended").get<bool>());
    auto logprobs = expected[i].at("logprobs").get<std::vector<double>>();
    ASSERT_EQ(found[i].logprobs.size(), logprobs.size());
    for (std::size_t t = 0; t < logprobs.size(); ++t)
      EXPECT_NEAR(found[i].logprobs[t], logprobs[t], 1e-6);
  }
}

TEST(BeamSearch, GivesTheResultsOfTransformers) {
  const Json golden = Json::parse(read_file(BEV_SOURCE_DIR "/tests/golden/beams/beams.json"));
  ASSERT_GE(golden.at("cases").size(), 60u);
  for (const Json& test : golden.at("cases")) {
    SCOPED_TRACE(test.dump());
    TableModel model;
    const Json& table = golden.at("tables").at(test.at("table").get<std::string>());
    table.at("last").get_to(model.last);
    table.at("previous").get_to(model.previous);
    golden.at("unit").get_to(model.unit);
    compare(run(args_of(test), model), test.at("results"));
    if (testing::Test::HasFailure()) break;
  }
}

BeamSearchArgs two_beams() {
  BeamSearchArgs args;
  args.options.num_beams = 2;
  args.options.num_return_sequences = 2;
  args.prompt = {1};
  args.end_tokens = {0};
  return args;
}

TEST(BeamSearch, FollowsTheBestSumsOfLogProbabilities) {
  BeamSearchArgs args = two_beams();
  args.max_new_tokens = 2;
  args.end_tokens = {};
  BeamSearch search(args);
  auto log_of = [](std::vector<double> p) {
    for (double& x : p) x = std::log(x);
    return p;
  };
  using Children = std::vector<BeamSearch::Child>;
  EXPECT_EQ(advance(search, {log_of({0.1, 0.4, 0.5})}), (Children{{0, 2}, {0, 1}}));
  EXPECT_EQ(advance(search, {log_of({0.4, 0.3, 0.3}), log_of({0.05, 0.9, 0.05})}), Children{});
  std::vector<BeamSearch::Hypothesis> found = search.finish();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].tokens, (Ids{1, 1}));
  EXPECT_NEAR(found[0].score, std::log(0.4 * 0.9) / 2, 1e-6);
  EXPECT_NEAR(found[0].logprobs[1], std::log(0.9), 1e-12);
  EXPECT_FALSE(found[0].ended);
  EXPECT_EQ(found[1].tokens, (Ids{2, 0}));
}

TEST(BeamSearch, GivesLiveBeamsBeforeItIsDone) {
  BeamSearch search(two_beams());
  EXPECT_TRUE(search.finish()[0].tokens.empty());
  advance(search, {{0, 2, 1}});
  advance(search, {{0, 0, 5}, {0, 0, 0}});
  std::vector<BeamSearch::Hypothesis> found = search.finish();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].tokens, (Ids{1, 2}));
  EXPECT_NEAR(found[0].score, (found[0].logprobs[0] + found[0].logprobs[1]) / 2, 1e-6);
  EXPECT_FALSE(found[0].ended);
}

TEST(BeamSearch, RefusesLogitsThatAreNotNumbers) {
  for (double bad : {std::nan(""), kInfinity}) {
    BeamSearch search(two_beams());
    expect_error(ErrorKind::kNumeric, {"beams:", "beam 0", "NaN"}, [&] {
      advance(search, {{0, bad, 1}});
    });
  }
  BeamSearch search(two_beams());
  advance(search, {{0, 2, 1}});
  expect_error(ErrorKind::kNumeric, {"beam 1", "after 1 tokens"}, [&] {
    advance(search, {{0, 2, 1}, {-kInfinity, -kInfinity, -kInfinity}});
  });
}

TEST(BeamSearch, RefusesOtherRowsThanThoseOfItsBeams) {
  BeamSearch search(two_beams());
  expect_error(ErrorKind::kShape, {"2 rows", "1 live"}, [&] {
    advance(search, {{0, 2, 1}, {0, 2, 1}});
  });
  advance(search, {{0, 2, 1}});
  expect_error(ErrorKind::kShape, {"rows of 3 and 2"}, [&] {
    advance(search, {{0, 2, 1}, {0, 2}});
  });
  BeamSearchArgs args = two_beams();
  args.max_new_tokens = 1;
  BeamSearch done(args);
  EXPECT_TRUE(advance(done, {{0, 2, 1}}).empty());
  expect_error(ErrorKind::kInternal, {"done"}, [&] { advance(done, {{0, 2, 1}}); });
}

TEST(BeamSearch, RefusesArgumentsOutOfRange) {
  auto refuse = [](ErrorKind kind, const std::string& part, auto change) {
    BeamSearchArgs args = two_beams();
    change(args);
    expect_error(kind, {part}, [&] {
      BeamSearch search(args);
      advance(search, {{0, 2, 1}});
    });
  };
  constexpr ErrorKind kConfig = ErrorKind::kConfig, kInput = ErrorKind::kInput;
  refuse(kInput, "prompt", [](BeamSearchArgs& args) { args.prompt.clear(); });
  refuse(kConfig, "--max-new-tokens: 0", [](BeamSearchArgs& args) { args.max_new_tokens = 0; });
  refuse(kConfig, "--length-penalty: 64 tokens",
         [](BeamSearchArgs& args) { args.options.length_penalty = -100; });
  refuse(kInput, "--logit-bias: token 3", [](BeamSearchArgs& args) { args.logit_bias = {{3, 1}}; });
  refuse(kConfig, "--forced-eos-token-id: token 3",
         [](BeamSearchArgs& args) { args.rules.forced_eos_token = 3; });
}

TEST(BeamOptions, AreRefusedOutOfRange) {
  auto refuse = [](const std::string& part, auto change) {
    BeamOptions options{.num_beams = 3, .num_return_sequences = 3};
    check_beams(options);
    change(options);
    expect_error(ErrorKind::kConfig, {part}, [&] { check_beams(options); });
  };
  refuse("--num-beams: 0", [](BeamOptions& options) { options.num_beams = 0; });
  refuse("--num-return-sequences: 4",
         [](BeamOptions& options) { options.num_return_sequences = 4; });
  refuse("--num-return-sequences: 0",
         [](BeamOptions& options) { options.num_return_sequences = 0; });
  refuse("--length-penalty", [](BeamOptions& options) { options.length_penalty = kInfinity; });
}

TEST(SequenceRules, AreRefusedOutOfRange) {
  auto refuse = [](const std::string& part, const SequenceRules& rules) {
    expect_error(ErrorKind::kConfig, {part}, [&] { check_rules(rules, 10); });
  };
  check_rules({.no_repeat_ngram_size = 2, .forced_bos_token = 9, .forced_eos_token = 0}, 10);
  refuse("--no-repeat-ngram-size: -1", {.no_repeat_ngram_size = -1});
  refuse("--forced-bos-token-id: token 10", {.forced_bos_token = 10});
  refuse("--forced-eos-token-id: token -2", {.forced_eos_token = -2});
}

}  // namespace
}  // namespace bev
