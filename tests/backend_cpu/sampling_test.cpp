// Sampling kernels against a plain reference, and against the probabilities they should draw with.
#include "kernels/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>

#include "tests/backend_cpu/kernel_fixture.h"

namespace bev {
namespace {
using namespace kernel_test;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Choice {
  std::int32_t token = 0;
  bool finite = false;
  bool operator==(const Choice&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Choice& choice) {
  return out << choice.token << (choice.finite ? "" : " (not finite)");
}

template <class T>
bool is_usable(const std::vector<T>& logits) {
  bool some = false;
  for (T x : logits) {
    if (std::isnan(x) || x == static_cast<T>(kInfinity)) return false;
    some |= std::isfinite(x);
  }
  return some;
}

template <class T>
struct Row {
  std::vector<T> logits;
  std::vector<LogitEdit> edits;
  std::vector<std::int32_t> counts;
  SamplingRule rule;
};

template <class T>
std::vector<T> edited(const Row<T>& row) {
  const SamplingRule& rule = row.rule;
  std::vector<T> x = row.logits;
  if (rule.only_edited) {
    std::fill(x.begin(), x.end(), static_cast<T>(-kInfinity));
    for (const LogitEdit& edit : row.edits) {
      x[static_cast<std::size_t>(edit.token)] = row.logits[static_cast<std::size_t>(edit.token)];
    }
  }
  for (const LogitEdit& edit : row.edits) {
    x[static_cast<std::size_t>(edit.token)] += static_cast<T>(edit.bias);
  }
  for (std::size_t i = 0; i < row.counts.size(); ++i) {
    const bool in_prompt = (row.counts[i] & kInPrompt) != 0;
    const std::int32_t times = row.counts[i] & ~kInPrompt;
    const auto repetition = static_cast<T>(rule.repetition_penalty);
    if (in_prompt || times > 0) x[i] = x[i] > 0 ? x[i] / repetition : x[i] * repetition;
    x[i] -= static_cast<T>(rule.frequency_penalty) * static_cast<T>(times);
    if (times > 0) x[i] -= static_cast<T>(rule.presence_penalty);
  }
  return x;
}

struct Weighted {
  std::size_t token;
  double weight;
};

double sum_of(const std::vector<Weighted>& weights) {
  double sum = 0;
  for (const Weighted& w : weights) sum += w.weight;
  return sum;
}

// What may be drawn with which weight, in the order of the draw.
template <class T>
std::vector<Weighted> candidates(const std::vector<T>& x, const SamplingRule& rule) {
  std::vector<T> order = x;
  std::sort(order.rbegin(), order.rend());
  const std::size_t k = rule.top_k == 0 ? x.size() : static_cast<std::size_t>(rule.top_k);
  const T least = order[std::min(k, x.size()) - 1];
  std::vector<Weighted> kept;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] < least) continue;
    kept.push_back({i, std::exp((double{x[i]} - double{order[0]}) / rule.temperature)});
  }
  if (rule.top_p < 1) {
    const double limit = rule.top_p * sum_of(kept);
    std::stable_sort(kept.begin(), kept.end(),
                     [](const Weighted& a, const Weighted& b) { return a.weight > b.weight; });
    double before = 0;
    std::size_t count = 0;
    while (count < kept.size() && before <= limit) before += kept[count++].weight;
    kept.resize(count);
  }
  std::erase_if(kept, [&](const Weighted& w) { return w.weight < rule.min_p; });
  return kept;
}

template <class T>
Choice reference(const Row<T>& row) {
  if (!is_usable(row.logits)) return {};
  if (row.rule.forced >= 0) return {row.rule.forced, true};
  const std::vector<T> x = edited(row);
  if (!is_usable(x)) return {};
  if (row.rule.temperature == 0 || row.rule.top_k == 1) {
    return {static_cast<std::int32_t>(std::max_element(x.begin(), x.end()) - x.begin()), true};
  }
  const std::vector<Weighted> kept = candidates(x, row.rule);
  const double target = row.rule.fraction * sum_of(kept);
  double sum = 0;
  std::int32_t token = -1;
  for (const Weighted& w : kept) {
    if (w.weight == 0) continue;
    token = static_cast<std::int32_t>(w.token);
    sum += w.weight;
    if (sum > target) break;
  }
  return {token, true};
}

// Selects all rows in one call.
template <class T>
std::vector<Choice> select(const std::vector<Row<T>>& rows, int threads, bool all_greedy = false) {
  const auto count = static_cast<std::int64_t>(rows.size());
  const auto columns = static_cast<std::int64_t>(rows[0].logits.size());
  std::vector<T> logits;
  std::vector<SamplingRule> rules;
  std::vector<LogitEdit> edits(3, {0, 1e30f});  // of no row
  std::vector<std::int32_t> counts(static_cast<std::size_t>(columns), 7);
  for (const Row<T>& row : rows) {
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    rules.push_back(row.rule);
    rules.back().edits_begin = static_cast<std::int32_t>(edits.size());
    edits.insert(edits.end(), row.edits.begin(), row.edits.end());
    rules.back().edits_end = static_cast<std::int32_t>(edits.size());
    if (row.counts.empty()) continue;
    rules.back().counts_row = static_cast<std::int32_t>(counts.size()) / static_cast<int>(columns);
    counts.insert(counts.end(), row.counts.begin(), row.counts.end());
  }
  const std::vector<T> before = logits;
  std::vector<std::int32_t> tokens(rows.size(), -7), status(rows.size(), -7);
  ThreadPool pool(threads);
  cpu_kernels().sampling.select(
      {.pool = &pool}, {.logits = {logits.data(), DtypeOf<T>::value, {count, columns}},
                        .rules = rules.data(),
                        .edits = edits.data(),
                        .counts = {counts.data(),
                                   Dtype::kI32,
                                   {static_cast<std::int64_t>(counts.size()) / columns, columns}},
                        .tokens = tokens.data(),
                        .status = status.data(),
                        .all_greedy = all_greedy});
  EXPECT_EQ(std::memcmp(logits.data(), before.data(), logits.size() * sizeof(T)), 0);
  std::vector<Choice> out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out.push_back({tokens[i], status[i] == static_cast<std::int32_t>(SelectStatus::kSelected)});
  }
  return out;
}

// A stream of numbers for the cases.
class Numbers {
 public:
  double uniform() { return (static_cast<double>(mix_bits(5, ++at_) >> 12) + 0.5) * 0x1p-52; }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(uniform() * static_cast<double>(n));
  }
  template <class V>
  V one_of(std::initializer_list<V> values) {
    return values.begin()[below(static_cast<std::int64_t>(values.size()))];
  }

 private:
  std::uint64_t at_ = 0;
};

template <class T>
Row<T> random_row(Numbers& numbers, std::int64_t columns) {
  Row<T> row;
  // Coarse logits make ties.
  const double step = numbers.one_of({0.0, 0.5, 2.0}), scale = numbers.one_of({1.0, 4.0, 12.0});
  for (std::int64_t i = 0; i < columns; ++i) {
    const double x = scale * (2 * numbers.uniform() - 1);
    row.logits.push_back(static_cast<T>(step > 0 ? std::round(x / step) * step : x));
    if (numbers.below(20) == 0) row.logits.back() = static_cast<T>(-kInfinity);
  }
  row.rule = {.temperature = numbers.one_of({0.0, 0.3, 1.0, 2.5}),
              .top_p = numbers.one_of({1.0, 0.9, 0.5, 0.01}),
              .min_p = numbers.one_of({0.0, 0.0, 0.1, 1.0}),
              .fraction = numbers.uniform(),
              .top_k = static_cast<std::int32_t>(numbers.one_of({0, 1, 2, 7, 1000}))};
  for (std::int64_t i = numbers.one_of({0, 0, 3}); i > 0; --i) {
    const double bias = numbers.one_of({-kInfinity, 5.0, -1.5});
    row.edits.push_back(
        {static_cast<std::int32_t>(numbers.below(columns)), static_cast<float>(bias)});
  }
  row.rule.only_edited = numbers.below(row.edits.empty() ? 30 : 3) == 0;
  if (numbers.below(2) == 0) {
    row.rule.repetition_penalty = numbers.one_of({1.0, 1.3, 0.7});
    row.rule.frequency_penalty = numbers.one_of({0.0, 0.4, -0.2});
    row.rule.presence_penalty = numbers.one_of({0.0, 1.1});
    for (std::int64_t i = 0; i < columns; ++i) {
      row.counts.push_back(static_cast<std::int32_t>(numbers.one_of({0, 0, 1, 5})) |
                           (numbers.below(4) == 0 ? kInPrompt : 0));
    }
  }
  if (numbers.below(15) == 0) row.rule.forced = static_cast<std::int32_t>(numbers.below(columns));
  if (numbers.below(15) == 0) {
    row.logits[static_cast<std::size_t>(numbers.below(columns))] =
        static_cast<T>(numbers.one_of({kNan, kInfinity}));
  }
  return row;
}

template <class T>
void compare_random_rows() {
  Numbers numbers;
  for (std::int64_t columns : {1, 2, 15, 16, 17, 33, 300}) {
    std::vector<Row<T>> rows;
    for (int i = 0; i < 300; ++i) rows.push_back(random_row<T>(numbers, columns));
    rows[3].logits.assign(static_cast<std::size_t>(columns), static_cast<T>(-kInfinity));
    const std::vector<Choice> got = select(rows, 1);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(got[i], reference(rows[i])) << "row " << i << " of " << columns;
      EXPECT_EQ(select<T>({rows[i]}, 1)[0], got[i]) << "alone";
      if (testing::Test::HasFailure()) return;
    }
    for (int threads : {2, 3}) EXPECT_EQ(select(rows, threads), got) << threads << " threads";
  }
}

TEST(Sampling, AllRulesTogetherMatchTheReferenceInF32) { compare_random_rows<float>(); }
TEST(Sampling, AllRulesTogetherMatchTheReferenceInF64) { compare_random_rows<double>(); }

Row<float> row_of(std::vector<float> logits, SamplingRule rule = {}) {
  return {.logits = std::move(logits), .edits = {}, .counts = {}, .rule = rule};
}
Choice select_one(const Row<float>& row) { return select<float>({row}, 1)[0]; }

TEST(Sampling, GreedyTakesTheFirstOfTheLargest) {
  std::vector<float> logits(100, -1.0f);
  logits[40] = logits[83] = 3.0f;
  EXPECT_EQ(select_one(row_of(logits)), (Choice{40, true}));
  EXPECT_EQ(select_one(row_of(logits, {.temperature = 5, .fraction = 0.99, .top_k = 1})),
            (Choice{40, true}));
  EXPECT_EQ(select<float>({row_of(logits), row_of({logits.rbegin(), logits.rend()})}, 2, true),
            (std::vector<Choice>{{40, true}, {16, true}}));
}

TEST(Sampling, RowsThatAreNotFiniteAreReportedAloneOfTheirBatch) {
  const auto low = static_cast<float>(-kInfinity);
  std::vector<Row<float>> rows;
  for (bool greedy : {true, false}) {
    const SamplingRule rule{.temperature = greedy ? 0.0 : 1.0, .fraction = 1e-9};
    for (double bad : {kNan, kInfinity}) {
      for (std::size_t at : {0, 18, 36}) {
        std::vector<float> logits(37, 1.0f);
        logits[at] = static_cast<float>(bad);
        rows.push_back(row_of(logits, rule));
        rows.back().rule.forced = at == 18 ? 5 : -1;
      }
    }
    rows.push_back(row_of(std::vector<float>(37, low), rule));
    rows.push_back(row_of(std::vector<float>(37, 2.0f), rule));
    rows.back().logits[0] = low;
  }
  const std::vector<Choice> got = select(rows, 2);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(got[i].finite, i % 8 == 7) << i;
    EXPECT_EQ(got[i].token, i % 8 == 7 ? 1 : 0) << i;
  }
}

TEST(Sampling, EditsForbidAndForceTokens) {
  Row<float> row = row_of({1, 2, 3}, {.temperature = 1, .fraction = 0.999});
  row.edits = {{2, static_cast<float>(-kInfinity)}, {1, static_cast<float>(-kInfinity)}};
  EXPECT_EQ(select_one(row), (Choice{0, true}));
  row.edits.push_back({0, static_cast<float>(-kInfinity)});
  EXPECT_EQ(select_one(row), (Choice{0, false})) << "nothing is left";
  row.rule.forced = 2;
  EXPECT_EQ(select_one(row), (Choice{2, true}));
  row = row_of({1, 2, 3});
  row.edits = {{0, 1.5f}, {0, 1.0f}};
  EXPECT_EQ(select_one(row), (Choice{0, true})) << "edits of a token add up";
}

TEST(Sampling, PenaltiesCountThePromptAndTheOutput) {
  const auto largest = [](std::vector<float> logits, std::vector<std::int32_t> counts,
                          SamplingRule rule) {
    Row<float> row = row_of(std::move(logits), rule);
    row.counts = std::move(counts);
    return select_one(row).token;
  };
  const SamplingRule repetition{.repetition_penalty = 2};
  EXPECT_EQ(largest({4, 3}, {0, 0}, repetition), 0);
  EXPECT_EQ(largest({4, 3}, {kInPrompt, 0}, repetition), 1);
  EXPECT_EQ(largest({4, 3}, {1, 0}, repetition), 1);
  EXPECT_EQ(largest({4, 3}, {5, 1}, repetition), 0) << "once, however often";
  EXPECT_EQ(largest({-2, -3}, {1, 0}, repetition), 1) << "below 0 it multiplies";
  const SamplingRule presence{.presence_penalty = 1.5};
  EXPECT_EQ(largest({4, 3}, {kInPrompt, 0}, presence), 0) << "the prompt does not count";
  EXPECT_EQ(largest({4, 3}, {kInPrompt + 1, 0}, presence), 1);
  EXPECT_EQ(largest({4, 2}, {9, 0}, presence), 0);
  const SamplingRule frequency{.frequency_penalty = 0.5};
  EXPECT_EQ(largest({4, 2.75f}, {kInPrompt | 2, 0}, frequency), 0);
  EXPECT_EQ(largest({4, 2.75f}, {kInPrompt | 3, 0}, frequency), 1);
  EXPECT_EQ(largest({4, 2.75f}, {kInPrompt, 0}, frequency), 0);
}

// Shares of 20,000 draws with evenly distributed random numbers, within 4 standard deviations.
void expect_shares(SamplingRule rule, const std::map<std::int32_t, double>& shares) {
  constexpr int kDraws = 20000;
  std::vector<Row<float>> rows;
  for (std::uint32_t i = 0; i < kDraws; ++i) {
    rule.fraction = (static_cast<double>(philox({i, 0, 0, 0}, 99)[0]) + 0.5) * 0x1p-32;
    rows.push_back(row_of(
        {std::log(0.1f), std::log(0.4f), std::log(0.05f), std::log(0.3f), std::log(0.15f)}, rule));
  }
  std::map<std::int32_t, int> seen;
  for (const Choice& choice : select(rows, 2)) ++seen[choice.token];
  EXPECT_EQ(seen.size(), shares.size());
  for (auto [token, share] : shares) {
    EXPECT_NEAR(seen[token], kDraws * share, 4 * std::sqrt(kDraws * share * (1 - share)) + 1e-9)
        << "token " << token;
  }
}

TEST(Sampling, DrawsWithTheProbabilitiesOfTheRule) {
  expect_shares({.temperature = 1}, {{0, 0.1}, {1, 0.4}, {2, 0.05}, {3, 0.3}, {4, 0.15}});
  const double half =
      std::sqrt(0.1) + std::sqrt(0.4) + std::sqrt(0.05) + std::sqrt(0.3) + std::sqrt(0.15);
  expect_shares({.temperature = 2}, {{0, std::sqrt(0.1) / half},
                                     {1, std::sqrt(0.4) / half},
                                     {2, std::sqrt(0.05) / half},
                                     {3, std::sqrt(0.3) / half},
                                     {4, std::sqrt(0.15) / half}});
  expect_shares({.temperature = 1, .top_k = 2}, {{1, 0.4 / 0.7}, {3, 0.3 / 0.7}});
  expect_shares({.temperature = 1, .top_p = 0.75},
                {{1, 0.4 / 0.85}, {3, 0.3 / 0.85}, {4, 0.15 / 0.85}});
  expect_shares({.temperature = 1, .min_p = 0.3},
                {{1, 0.4 / 0.85}, {3, 0.3 / 0.85}, {4, 0.15 / 0.85}});
  expect_shares({.temperature = 1, .top_p = 0.75, .min_p = 0.5, .top_k = 4},
                {{1, 0.4 / 0.7}, {3, 0.3 / 0.7}});
}

template <class T>
void compare_top_logits() {
  for (std::int64_t columns : {1, 5, 700}) {
    for (std::int64_t k : {1, 2, 5, 64, 1024}) {
      constexpr std::int64_t kRows = 7;
      Buffer logits = random_buffer(DtypeOf<T>::value, {kRows, columns}, 3, 4);
      std::vector<double> x = logits.values();
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (i % 3 != 0) x[i] = std::round(x[i]);
        if (i % 11 == 5) x[i] = -kInfinity;
        logits.set(i, x[i]);
      }
      std::vector<std::int32_t> ids;
      std::vector<double> values;
      for (std::int64_t row = 0; row < kRows; ++row) {
        std::vector<std::int32_t> order(static_cast<std::size_t>(columns));
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
        const double* at = x.data() + row * columns;
        std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return at[a] > at[b]; });
        for (std::int64_t i = 0; i < k; ++i) {
          ids.push_back(i < columns ? order[static_cast<std::size_t>(i)] : -1);
          values.push_back(i < columns ? at[ids.back()] : -kInfinity);
        }
      }
      for (int threads : {1, 3}) {
        ThreadPool pool(threads);
        Buffer got(DtypeOf<T>::value, {kRows, k});
        std::vector<std::int32_t> got_ids(ids.size(), -7);
        cpu_kernels().sampling.top_logits({.pool = &pool},
                                          {.logits = logits.view(),
                                           .values = got.view(),
                                           .ids = {got_ids.data(), Dtype::kI32, {kRows, k}}});
        EXPECT_EQ(got_ids, ids);
        EXPECT_EQ(got.values(), values);
        EXPECT_TRUE(got.guards_intact());
      }
    }
  }
}

TEST(Sampling, TopLogitsAreTheFirstOfAStableSort) {
  compare_top_logits<float>();
  compare_top_logits<double>();
}

TEST(Sampling, CountsFollowThePromptAndWhatIsRecorded) {
  ThreadPool pool(1);
  const SamplingKernels& kernels = cpu_kernels().sampling;
  std::vector<std::int32_t> counts(3 * 6, 5);
  const View view{counts.data(), Dtype::kI32, {3, 6}};
  const std::vector<std::int32_t> prompt = {1, 1, 4}, output = {4, 2, 4};
  kernels.count({.pool = &pool}, {.counts = view,
                                  .row = 1,
                                  .prompt = prompt.data(),
                                  .output = output.data(),
                                  .prompt_tokens = 3,
                                  .output_tokens = 3});
  const std::vector<std::int32_t> row = {0, kInPrompt, 1, 0, kInPrompt + 2, 0};
  EXPECT_EQ(std::vector<std::int32_t>(counts.begin() + 6, counts.begin() + 12), row);
  EXPECT_EQ(counts[5], 5);
  EXPECT_EQ(counts[12], 5);

  std::vector<SamplingRule> rules(4);
  rules[0].counts_row = rules[2].counts_row = rules[3].counts_row = 1;
  const std::vector<std::int32_t> tokens = {4, 2, 5, 0}, slots = {2, 0, -1, 1};
  std::vector<std::int32_t> last = {-7, -7, -7};
  kernels.record({.pool = &pool}, {.tokens = tokens.data(),
                                   .slots = slots.data(),
                                   .rules = rules.data(),
                                   .n = 4,
                                   .last = last.data(),
                                   .counts = view});
  EXPECT_EQ(last, (std::vector<std::int32_t>{2, 0, 4}));
  EXPECT_EQ(std::vector<std::int32_t>(counts.begin() + 6, counts.begin() + 12),
            (std::vector<std::int32_t>{1, kInPrompt, 1, 0, kInPrompt + 3, 0}));

  std::vector<std::int32_t> resolved = {10, 11, 12};
  const std::vector<std::int32_t> from = {2, -1, 0};
  kernels.resolve({.pool = &pool},
                  {.tokens = resolved.data(), .slots = from.data(), .n = 3, .last = last.data()});
  EXPECT_EQ(resolved, (std::vector<std::int32_t>{4, 11, 2}));
}

TEST(Sampling, NoRows) {
  ThreadPool pool(2);
  float none = 0;
  cpu_kernels().sampling.select({.pool = &pool}, {.logits = {&none, Dtype::kF32, {0, 5}}});
  cpu_kernels().sampling.top_logits({.pool = &pool}, {.logits = {&none, Dtype::kF32, {0, 5}},
                                                      .values = {&none, Dtype::kF32, {0, 3}},
                                                      .ids = {&none, Dtype::kI32, {0, 3}}});
}

}  // namespace
}  // namespace bev
