// The sampling kernels choose what those of the CPU choose, exactly.
#include "kernels/sampling.h"

#include <gtest/gtest.h>

#include "backend/cuda/tables.h"
#include "tests/cuda_emulation/emulated_stream.h"

namespace bev {
SamplingKernels cuda_table(Family<SamplingKernels>);
}

namespace bev::cuda_emulation {
namespace {
using namespace kernel_test;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const SamplingKernels kCuda = cuda_table(Family<SamplingKernels>{});

// A stream of numbers for the cases.
class Numbers {
 public:
  explicit Numbers(std::uint64_t key) : key_(key) {}
  double uniform() { return (static_cast<double>(mix_bits(key_, ++at_) >> 12) + 0.5) * 0x1p-52; }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(uniform() * static_cast<double>(n));
  }
  template <class V>
  V one_of(std::initializer_list<V> values) {
    return values.begin()[below(static_cast<std::int64_t>(values.size()))];
  }

 private:
  std::uint64_t key_, at_ = 0;
};

// Rows of logits and what a call needs for them.
struct Rows {
  std::int64_t columns;
  std::vector<float> logits = {};
  std::vector<SamplingRule> rules = {};
  std::vector<LogitEdit> edits = {{0, 1e30f}, {0, 1e30f}};  // of no row
  std::vector<std::int32_t> counts = {};
  bool all_greedy = false;

  std::int64_t count() const { return static_cast<std::int64_t>(rules.size()); }
  void add(const std::vector<float>& row, SamplingRule rule,
           const std::vector<LogitEdit>& row_edits = {},
           const std::vector<std::int32_t>& row_counts = {}) {
    logits.insert(logits.end(), row.begin(), row.end());
    rule.edits_begin = static_cast<std::int32_t>(edits.size());
    edits.insert(edits.end(), row_edits.begin(), row_edits.end());
    rule.edits_end = static_cast<std::int32_t>(edits.size());
    if (!row_counts.empty()) {
      rule.counts_row =
          static_cast<std::int32_t>(static_cast<std::int64_t>(counts.size()) / columns);
      counts.insert(counts.end(), row_counts.begin(), row_counts.end());
    }
    rules.push_back(rule);
  }
};

struct Choices {
  std::vector<std::int32_t> tokens, status;
};

template <class Array>
Choices select(const SamplingKernels& kernels, const Stream& stream, Rows& rows, Array& logits,
               SamplingRule* rules, LogitEdit* edits, std::int32_t* counts, std::int32_t* tokens,
               std::int32_t* status) {
  const std::int64_t counted = static_cast<std::int64_t>(rows.counts.size()) / rows.columns;
  kernels.select(
      stream, {.logits = {logits.data(), Dtype::kF32, {rows.count(), rows.columns}},
               .rules = rules,
               .edits = edits,
               .counts = counted == 0 ? View{} : View{counts, Dtype::kI32, {counted, rows.columns}},
               .tokens = tokens,
               .status = status,
               .all_greedy = rows.all_greedy});
  return {{tokens, tokens + rows.count()}, {status, status + rows.count()}};
}

void compare(Rows rows, const Device& settings = {}) {
  const std::vector<std::int32_t> unset(rows.rules.size(), -7);
  ThreadPool pool(1);
  std::vector<std::int32_t> tokens = unset, status = unset;
  const Choices want =
      select(cpu_kernels().sampling, {.pool = &pool}, rows, rows.logits, rows.rules.data(),
             rows.edits.data(), rows.counts.data(), tokens.data(), status.data());
  EmulatedStream stream(settings);
  DeviceArray<float> logits(rows.logits);
  DeviceArray<SamplingRule> rules(rows.rules);
  DeviceArray<LogitEdit> edits(rows.edits);
  DeviceArray<std::int32_t> counts(rows.counts), device_tokens(unset), device_status(unset);
  try {
    const Choices got = select(kCuda, stream, rows, logits, rules.data(), edits.data(),
                               counts.data(), device_tokens.data(), device_status.data());
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.status, want.status);
    EXPECT_TRUE(device_tokens.intact() && device_status.intact());
    EXPECT_EQ(std::memcmp(logits.data(), rows.logits.data(), rows.logits.size() * sizeof(float)),
              0);
  } catch (const KernelFault& error) {
    ADD_FAILURE() << error.what();
  }
}

std::vector<float> random_logits(Numbers& numbers, std::int64_t columns) {
  // Coarse logits make ties.
  const double step = numbers.one_of({0.0, 0.5, 2.0}),
               scale = numbers.one_of({1.0, 4.0, 12.0, 90.0});
  std::vector<float> out;
  for (std::int64_t i = 0; i < columns; ++i) {
    const double x = scale * (2 * numbers.uniform() - 1);
    out.push_back(static_cast<float>(step > 0 ? std::round(x / step) * step : x));
    if (numbers.below(20) == 0) out.back() = -kInfinity;
  }
  return out;
}

void add_random_row(Numbers& numbers, Rows& rows) {
  std::vector<float> logits = random_logits(numbers, rows.columns);
  SamplingRule rule{
      .temperature = numbers.one_of({0.0, 0.01, 0.3, 1.0, 2.5, 100.0}),
      .top_p = numbers.one_of({1.0, 0.9, 0.5, 0.01}),
      .min_p = numbers.one_of({0.0, 0.0, 0.1, 1.0}),
      .fraction = numbers.one_of({numbers.uniform(), numbers.uniform(), 1e-12, 1 - 1e-12}),
      .top_k = static_cast<std::int32_t>(numbers.one_of({0, 1, 2, 7, 1000}))};
  std::vector<LogitEdit> edits;
  for (std::int64_t i = numbers.one_of({0, 0, 3, 600}); i > 0; --i) {
    const float bias = numbers.one_of({-kInfinity, 5.0f, -1.5f, 0.3f});
    edits.push_back({static_cast<std::int32_t>(numbers.below(rows.columns)), bias});
    if (i > 100 && bias == -kInfinity) edits.back().bias = 0.1f;
  }
  rule.only_edited = numbers.below(edits.empty() ? 30 : 3) == 0;
  std::vector<std::int32_t> counts;
  if (numbers.below(2) == 0) {
    rule.repetition_penalty = numbers.one_of({1.0, 1.3, 0.7});
    rule.frequency_penalty = numbers.one_of({0.0, 0.4, -0.2});
    rule.presence_penalty = numbers.one_of({0.0, 1.1});
    for (std::int64_t i = 0; i < rows.columns; ++i) {
      counts.push_back(static_cast<std::int32_t>(numbers.one_of({0, 0, 1, 5})) |
                       (numbers.below(4) == 0 ? kInPrompt : 0));
    }
  }
  if (numbers.below(15) == 0) rule.forced = static_cast<std::int32_t>(numbers.below(rows.columns));
  if (numbers.below(15) == 0) {
    logits[static_cast<std::size_t>(numbers.below(rows.columns))] =
        numbers.one_of({kNan, kInfinity});
  }
  if (numbers.below(30) == 0) std::fill(logits.begin(), logits.end(), -kInfinity);
  rows.add(logits, rule, edits, counts);
}

TEST(EmulatedSampling, AllRulesTogetherMatchTheCpu) {
  std::uint64_t key = 0;
  for (Schedule schedule : {Schedule::kFirst, Schedule::kLast, Schedule::kRandom}) {
    for (int processors : {1, 132}) {
      for (std::int64_t columns : {1, 2, 33, 300, 3001}) {
        SCOPED_TRACE(testing::Message() << columns << " columns, " << processors << " processors");
        Numbers numbers(++key);
        Rows rows{.columns = columns};
        const int count = columns > 1000 ? 6 : 24;
        for (int i = 0; i < count; ++i) add_random_row(numbers, rows);
        compare(rows, {.multiprocessors = processors, .schedule = schedule, .seed = key});
        if (HasFailure()) return;
      }
    }
  }
}

// Rows in several slices, long lists of candidates, and lists that overflow.
TEST(EmulatedSampling, LongRowsMatchTheCpu) {
  Numbers numbers(77);
  for (std::int64_t columns : {20000, 41001}) {
    Rows rows{.columns = columns};
    std::vector<float> logits = random_logits(numbers, columns);
    rows.add(logits, {.temperature = 1, .fraction = 0.3});
    rows.add(logits, {.temperature = 1, .top_p = 0.5, .fraction = 0.9});
    rows.add(std::vector<float>(static_cast<std::size_t>(columns), 1.5f),
             {.temperature = 1, .top_p = 0.7, .fraction = 0.6});
    for (float& x : logits) x = std::round(x);
    rows.add(logits, {.temperature = 0.7, .fraction = 0.5, .top_k = 100});
    rows.add(logits,
             {.temperature = 50, .top_p = 0.9, .min_p = 0.4, .fraction = 0.99, .top_k = 15000});
    compare(rows);
    if (HasFailure()) return;
  }
}

// A few tokens of a long row may be selected; twice in the list, and in slices without any.
TEST(EmulatedSampling, RowsOfFewAllowedTokensMatchTheCpu) {
  Numbers numbers(78);
  const std::int64_t columns = 41001;
  const std::vector<float> logits = random_logits(numbers, columns);
  for (int processors : {1, 132}) {
    Rows rows{.columns = columns};
    const std::vector<LogitEdit> few = {{40000, 0}, {17, 0}, {40000, 1}, {18, -kInfinity}, {9, 0}};
    rows.add(logits, {.only_edited = true}, few);
    rows.add(logits, {.temperature = 100, .fraction = 0.7, .only_edited = true}, few);
    rows.add(logits, {.temperature = 9, .top_p = 0.9, .fraction = 0.99, .only_edited = true}, few);
    rows.add(logits, {.temperature = 9, .fraction = 0.5, .top_k = 2, .only_edited = true}, few);
    rows.add(logits, {.temperature = 1, .only_edited = true}, {{5, -kInfinity}});
    rows.add(logits, {.temperature = 1, .only_edited = true});
    std::vector<LogitEdit> many;
    for (int i = 0; i < 1500; ++i) {
      many.push_back({static_cast<std::int32_t>(numbers.below(900)), 0.25f * (i % 5)});
    }
    rows.add(logits, {.temperature = 3, .fraction = 0.4, .only_edited = true}, many);
    rows.add(logits, {.forced = 3, .only_edited = true}, few);
    std::vector<float> bad = logits;
    bad[20000] = kNan;  // not among the allowed ones
    rows.add(bad, {.temperature = 1, .only_edited = true}, few);
    bad[20000] = kInfinity;
    rows.add(bad, {.only_edited = true}, few);
    compare(rows, {.multiprocessors = processors});
    if (HasFailure()) return;
  }
}

TEST(EmulatedSampling, GreedyRowsMatchTheCpu) {
  Numbers numbers(5);
  for (std::int64_t columns : {1, 37, 5000}) {
    for (int processors : {1, 132}) {
      Rows rows{.columns = columns, .all_greedy = true};
      for (int i = 0; i < 6; ++i) {
        std::vector<float> logits = random_logits(numbers, columns);
        for (float& x : logits) x = std::round(x / 8);
        rows.add(logits, {});
      }
      rows.add(std::vector<float>(static_cast<std::size_t>(columns), -kInfinity), {});
      std::vector<float> bad(static_cast<std::size_t>(columns), 1.0f);
      bad.back() = kNan;
      rows.add(bad, {});
      bad.back() = kInfinity;
      rows.add(bad, {});
      compare(rows, {.multiprocessors = processors});
    }
  }
}

TEST(EmulatedSampling, TopLogitsMatchTheCpu) {
  for (std::int64_t columns : {1, 5, 700, 9000}) {
    for (std::int64_t k : {1, 5, 64, 1024}) {
      if (columns > 5000 && k != 5 && k != 1024) continue;
      SCOPED_TRACE(testing::Message() << k << " of " << columns);
      const std::int64_t count = columns > 5000 ? 2 : 5;
      Buffer logits = random_buffer(Dtype::kF32, {count, columns}, 3, 4);
      const std::vector<double> x = logits.values();
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (i % 3 != 0) logits.set(i, std::round(x[i]));
        if (k == 5) logits.set(i, x[i] / 8 + std::sin(static_cast<double>(i) / 50) * 20);
        if (i % 11 == 5) logits.set(i, -kInfinity);
      }
      ThreadPool pool(1);
      Buffer want(Dtype::kF32, {count, k});
      std::vector<std::int32_t> want_ids(static_cast<std::size_t>(count * k), -7);
      cpu_kernels().sampling.top_logits({.pool = &pool},
                                        {.logits = logits.view(),
                                         .values = want.view(),
                                         .ids = {want_ids.data(), Dtype::kI32, {count, k}}});
      EmulatedStream stream({.schedule = static_cast<Schedule>(k % 3)});
      DeviceTensor from(logits.view()), values(Dtype::kF32, {count, k});
      DeviceTensor ids(Dtype::kI32, {count, k});
      kCuda.top_logits(stream, {.logits = from.view(), .values = values.view(), .ids = ids.view()});
      EXPECT_EQ(values.values(), want.values());
      EXPECT_EQ(std::memcmp(ids.data(), want_ids.data(), want_ids.size() * 4), 0);
      EXPECT_TRUE(values.intact() && ids.intact());
    }
  }
}

TEST(EmulatedSampling, CountsFollowThePromptAndWhatIsRecorded) {
  EmulatedStream stream;
  DeviceArray<std::int32_t> counts(std::vector<std::int32_t>(18, 5));
  const View view{counts.data(), Dtype::kI32, {3, 6}};
  DeviceArray<std::int32_t> prompt({1, 1, 4}), output({4, 2, 4});
  kCuda.count(stream, {.counts = view,
                       .row = 1,
                       .prompt = prompt.data(),
                       .output = output.data(),
                       .prompt_tokens = 3,
                       .output_tokens = 3});
  EXPECT_EQ(counts.values(), (std::vector<std::int32_t>{5, 5, 5, 5, 5, 5, 0, kInPrompt, 1, 0,
                                                        kInPrompt + 2, 0, 5, 5, 5, 5, 5, 5}));
  std::vector<SamplingRule> rules(4);
  rules[0].counts_row = rules[2].counts_row = rules[3].counts_row = 1;
  DeviceArray<SamplingRule> device_rules(rules);
  DeviceArray<std::int32_t> tokens({4, 2, 5, 0}), slots({2, 0, -1, 1}), last({-7, -7, -7});
  kCuda.record(stream, {.tokens = tokens.data(),
                        .slots = slots.data(),
                        .rules = device_rules.data(),
                        .n = 4,
                        .last = last.data(),
                        .counts = view});
  EXPECT_EQ(last.values(), (std::vector<std::int32_t>{2, 0, 4}));
  EXPECT_EQ(counts.values(), (std::vector<std::int32_t>{5, 5, 5, 5, 5, 5, 1, kInPrompt, 1, 0,
                                                        kInPrompt + 3, 0, 5, 5, 5, 5, 5, 5}));
  DeviceArray<std::int32_t> resolved({10, 11, 12}), from({2, -1, 0});
  kCuda.resolve(stream,
                {.tokens = resolved.data(), .slots = from.data(), .n = 3, .last = last.data()});
  EXPECT_EQ(resolved.values(), (std::vector<std::int32_t>{4, 11, 2}));
}

TEST(EmulatedSampling, NoRows) {
  EmulatedStream stream;
  kCuda.select(stream, {.logits = {nullptr, Dtype::kF32, {0, 5}}});
  kCuda.top_logits(stream, {.logits = {nullptr, Dtype::kF32, {0, 5}},
                            .values = {nullptr, Dtype::kF32, {0, 3}},
                            .ids = {nullptr, Dtype::kI32, {0, 3}}});
}

}  // namespace
}  // namespace bev::cuda_emulation
