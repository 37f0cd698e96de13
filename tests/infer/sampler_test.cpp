#include "infer/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "base/philox.h"
#include "tests/support/expect_error.h"
#include "tests/support/selection.h"

namespace bev {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

SamplingOptions sampling(double temperature, std::int64_t top_k = 0, double top_p = 1) {
  return {temperature, top_k, top_p, 7};
}

// The selected token; -1 for a row that is not finite.
std::int32_t pick_token(const std::vector<double>& logits, const SamplingOptions& options,
                        const TokenPlace& place) {
  return test::select_token(logits, sampling_rule(options, place));
}

std::vector<double> softmax(const std::vector<double>& logits, double temperature) {
  double largest = *std::max_element(logits.begin(), logits.end()), sum = 0;
  std::vector<double> p;
  for (double logit : logits) sum += p.emplace_back(std::exp((logit - largest) / temperature));
  for (double& value : p) value /= sum;
  return p;
}

std::map<std::int32_t, double> frequencies(const std::vector<double>& logits,
                                           const SamplingOptions& options, int draws) {
  std::map<std::int32_t, double> counts;
  for (int i = 0; i < draws; ++i) {
    counts[pick_token(logits, options, {i % 13, i / 13})] += 1.0 / draws;
  }
  return counts;
}

std::set<std::int32_t> chosen(const std::vector<double>& logits, const SamplingOptions& options) {
  std::set<std::int32_t> tokens;
  for (const auto& [token, share] : frequencies(logits, options, 2000)) tokens.insert(token);
  return tokens;
}

// Shares must be those of `expected` within five standard deviations.
void expect_shares(const std::vector<double>& expected, const std::vector<double>& logits,
                   const SamplingOptions& options) {
  constexpr int kDraws = 40000;
  std::map<std::int32_t, double> shares = frequencies(logits, options, kDraws);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    double p = expected[i], deviation = std::sqrt(p * (1 - p) / kDraws);
    EXPECT_NEAR(shares[static_cast<std::int32_t>(i)], p, 5 * deviation) << "token " << i;
  }
}

std::vector<double> random_logits(std::size_t count, std::uint64_t seed) {
  std::vector<double> logits;
  for (std::size_t i = 0; i < count; ++i) {
    logits.push_back(12 * uniform_of(philox({static_cast<std::uint32_t>(i), 0, 0, 0}, seed)[0]));
  }
  return logits;
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  std::vector<double> logits = {1, 5, 2, 5, 5};
  EXPECT_EQ(pick_token(logits, sampling(0), {}), 1);
}

TEST(Sampler, TopKOfOneIsGreedy) {
  EXPECT_EQ(chosen({1, 5, 2, 5, 5}, sampling(3, 1)), std::set<std::int32_t>{1});
}

TEST(Sampler, SharesFollowTheSoftmaxAtTheTemperature) {
  std::vector<double> logits = {0.1, 1.2, -0.7, 2.0, 0.4, 1.9};
  for (double temperature : {0.5, 1.0, 2.5}) {
    expect_shares(softmax(logits, temperature), logits, sampling(temperature));
  }
}

TEST(Sampler, ExtremeTemperaturesAreGreedyAndUniform) {
  std::vector<double> logits = {1, 3, 2};
  EXPECT_EQ(chosen(logits, sampling(1e-310)), std::set<std::int32_t>{1});
  expect_shares({1.0 / 3, 1.0 / 3, 1.0 / 3}, logits, sampling(1e300));
}

TEST(Sampler, TopKKeepsAllThatEqualTheKth) {
  EXPECT_EQ(chosen({1, 3, 2, 2, 0}, sampling(2, 2)), (std::set<std::int32_t>{1, 2, 3}));
  EXPECT_EQ(chosen({1, 3, 2, 2, 0}, sampling(2, 4)), (std::set<std::int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(chosen({1, 3, 2}, sampling(2, 100)), (std::set<std::int32_t>{0, 1, 2}));
}

TEST(Sampler, TopPKeepsTokensUntilTheOnesBeforeExceedIt) {
  std::vector<double> halves = {std::log(0.25), std::log(0.125), std::log(0.5), std::log(0.125)};
  EXPECT_EQ(chosen(halves, sampling(1, 0, 1e-9)), (std::set<std::int32_t>{2}));
  EXPECT_EQ(chosen(halves, sampling(1, 0, 0.49)), (std::set<std::int32_t>{2}));
  EXPECT_EQ(chosen(halves, sampling(1, 0, 0.51)), (std::set<std::int32_t>{0, 2}));
  EXPECT_EQ(chosen(halves, sampling(1, 0, 0.8)), (std::set<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(chosen(halves, sampling(1, 0, 0.99)), (std::set<std::int32_t>{0, 1, 2, 3}));
  expect_shares({1.0 / 3, 0, 2.0 / 3, 0}, halves, sampling(1, 0, 0.6));
}

TEST(Sampler, TopPThatIsJustReachedKeepsTheNextToken) {
  EXPECT_EQ(chosen({0, 0, 0, 0}, sampling(1, 0, 0.5)), (std::set<std::int32_t>{0, 1, 2}));
}

TEST(Sampler, TopPCountsWhatTopKLeaves) {
  // Among all four the first has 0.4; among the first two each has 0.5, more than 0.45.
  std::vector<double> logits = {std::log(0.4), std::log(0.4), std::log(0.1), std::log(0.1)};
  EXPECT_EQ(chosen(logits, sampling(1, 0, 0.45)), (std::set<std::int32_t>{0, 1}));
  EXPECT_EQ(chosen(logits, sampling(1, 2, 0.45)), (std::set<std::int32_t>{0}));
}

TEST(Sampler, ImpossibleTokensAreNeverChosen) {
  std::vector<double> logits = {-kInfinity, 0, -kInfinity, 0};
  EXPECT_EQ(chosen(logits, sampling(1e300)), (std::set<std::int32_t>{1, 3}));
  EXPECT_EQ(chosen(logits, sampling(1, 3, 0.999999)), (std::set<std::int32_t>{1, 3}));
  EXPECT_EQ(pick_token(logits, sampling(0), {}), 1);
}

TEST(Sampler, FiltersOfALargeVocabularyMatchASort) {
  std::vector<double> logits = random_logits(150000, 3);
  std::vector<std::int32_t> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  std::vector<double> p = softmax(logits, 0.2);
  std::set<std::int32_t> kept_k, kept_p;
  double before = 0;
  for (std::int32_t token : order) {
    double logit = logits[static_cast<std::size_t>(token)];
    if (logit >= logits[static_cast<std::size_t>(order[39])]) kept_k.insert(token);
    if (before <= 0.3) kept_p.insert(token);
    before += p[static_cast<std::size_t>(token)];
  }
  for (int position = 0; position < 40; ++position) {
    EXPECT_TRUE(kept_k.contains(pick_token(logits, sampling(5, 40), {0, position})));
    EXPECT_TRUE(kept_p.contains(pick_token(logits, sampling(0.2, 0, 0.3), {0, position})));
  }
}

TEST(Sampler, TheDrawIsNamedBySeedSequenceAndPosition) {
  std::vector<double> logits(1000, 0.0);
  auto draw = [&](std::uint64_t seed, std::int64_t sequence, std::int64_t position) {
    SamplingOptions options = sampling(1);
    options.seed = seed;
    return pick_token(logits, options, {sequence, position});
  };
  std::set<std::int32_t> tokens;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(draw(1, 2, i), draw(1, 2, i));
    tokens.insert({draw(1, 2, i), draw(2, 2, i), draw(1, 3, i)});
  }
  EXPECT_GT(tokens.size(), 50u);
}

TEST(Sampler, RowsThatAreNotFiniteAreMarked) {
  for (double bad : {std::nan(""), kInfinity}) {
    for (std::size_t at : {0, 1, 2}) {
      std::vector<double> logits = {1, 2, 3};
      logits[at] = bad;
      EXPECT_EQ(pick_token(logits, sampling(0.0), {4, 9}), -1);
      EXPECT_EQ(pick_token(logits, sampling(1.0, 2, 0.5), {4, 9}), -1);
    }
  }
  EXPECT_EQ(pick_token({-kInfinity, -kInfinity}, sampling(1), {}), -1);
}

TEST(Sampler, OptionsOutOfRangeAreErrors) {
  expect_error(ErrorKind::kConfig, {"--temperature", "-1"},
               [] { check_sampling(sampling(-1), 10); });
  expect_error(ErrorKind::kConfig, {"--temperature"}, [] { check_sampling(sampling(NAN), 10); });
  expect_error(ErrorKind::kConfig, {"--top-k", "-2"}, [] { check_sampling(sampling(1, -2), 10); });
  expect_error(ErrorKind::kConfig, {"--top-p"}, [] { check_sampling(sampling(1, 0, 0), 10); });
  expect_error(ErrorKind::kConfig, {"--top-p"}, [] { check_sampling(sampling(1, 0, 1.1), 10); });
  check_sampling(sampling(0, 0, 1), 10);
  auto refused = [](const char* flag, auto set) {
    SamplingOptions options = sampling(1);
    set(options);
    expect_error(ErrorKind::kConfig, {flag}, [&] { check_sampling(options, 10); });
  };
  refused("--min-p", [](SamplingOptions& o) { o.min_p = 1.5; });
  refused("--repetition-penalty", [](SamplingOptions& o) { o.repetition_penalty = 0; });
  refused("--presence-penalty", [](SamplingOptions& o) { o.presence_penalty = NAN; });
  refused("--frequency-penalty", [](SamplingOptions& o) { o.frequency_penalty = kInfinity; });
  for (LogitEdit edit : {LogitEdit{10, 1}, LogitEdit{-1, 1}, LogitEdit{3, NAN}}) {
    SamplingOptions options = sampling(1);
    options.logit_bias = {edit};
    expect_error(ErrorKind::kInput, {"--logit-bias"}, [&] { check_sampling(options, 10); });
  }
}

}  // namespace
}  // namespace bev
