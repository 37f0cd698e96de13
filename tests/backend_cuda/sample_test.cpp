// Tokens that the device selects are those that the CPU selects from the same logits.
#include <cstring>

#include "kernels/sampling.h"
#include "tests/backend_cuda/family.h"

namespace bev::cuda_test {
namespace {

constexpr std::int64_t kCountRows = 3, kEdits = 700;

class CudaSample : public CudaRig {
 protected:
  double uniform() {
    PhiloxCounter counter = philox({++drawn_, 0, 0, 0}, 7);
    return static_cast<double>(uniform_of(counter[0]));
  }
  std::int32_t below(std::int64_t bound) {
    return static_cast<std::int32_t>(uniform() * static_cast<double>(bound));
  }
  // f32 on both sides.
  struct Logits {
    std::vector<float> host;
    Tensor device;
    std::int64_t rows, columns;

    View host_view() { return {host.data(), Dtype::kF32, {rows, columns}}; }
  };
  Logits logits_of(std::int64_t rows, std::int64_t columns, std::vector<float> values) {
    Logits out{std::move(values), Tensor(device_arena(), Dtype::kF32, {rows, columns}, "test"),
               rows, columns};
    cuda().device.upload(cuda_stream(), out.host.data(), out.device);
    return out;
  }
  Logits random_logits(std::int64_t rows, std::int64_t columns, double scale) {
    std::vector<float> values(static_cast<std::size_t>(rows * columns));
    for (float& value : values) {
      value = static_cast<float>(scale * (uniform() + uniform() + uniform() - 1.5));
    }
    return logits_of(rows, columns, std::move(values));
  }

  SamplingRule random_rule(std::int64_t columns) {
    constexpr double kTemperatures[] = {0, 1, 0.3, 100, 2.5, 1e9, 0.7, 1.5, 1e-3};
    SamplingRule rule;
    rule.temperature = kTemperatures[below(9)];
    if (uniform() < 0.5) rule.top_p = uniform() < 0.2 ? 1e-9 : uniform();
    if (uniform() < 0.4) rule.min_p = uniform() < 0.2 ? 1 : 0.3 * uniform();
    if (uniform() < 0.5) {
      const double share = std::pow(uniform(), 3);
      rule.top_k = 1 + static_cast<std::int32_t>(share * static_cast<double>(columns));
    }
    if (uniform() < 0.4) {
      rule.counts_row = below(kCountRows);
      rule.repetition_penalty = 1 + uniform();
      rule.presence_penalty = uniform();
      rule.frequency_penalty = uniform() - 0.5;
    }
    if (uniform() < 0.3) {
      rule.edits_begin = below(100);
      rule.edits_end = rule.edits_begin + below(kEdits - 100);
      rule.only_edited = uniform() < 0.3;
    }
    rule.fraction = 0.001 + 0.998 * uniform();
    if (uniform() < 0.05) rule.forced = below(columns);
    return rule;
  }
  std::vector<SamplingRule> random_rules(std::int64_t rows, std::int64_t columns) {
    std::vector<SamplingRule> rules;
    for (std::int64_t i = 0; i < rows; ++i) rules.push_back(random_rule(columns));
    return rules;
  }

  // Plain structures on the device.
  template <class T>
  Tensor uploaded(const std::vector<T>& items) {
    static_assert(sizeof(T) % sizeof(std::int32_t) == 0);
    const auto count = static_cast<std::int64_t>(items.size() * sizeof(T) / sizeof(std::int32_t));
    Tensor out(device_arena(), Dtype::kI32, {count}, "test");
    cuda().device.upload(cuda_stream(), items.data(), out);
    return out;
  }
  std::vector<std::int32_t> fetched(const Tensor& tensor) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(tensor.numel()));
    cuda().device.fetch(cuda_stream(), tensor, out.data()).wait();
    return out;
  }
  struct Selected {
    std::vector<std::int32_t> tokens, status;
    bool operator==(const Selected&) const = default;
  };
  // Counts and edits that rules refer to.
  struct Past {
    std::vector<std::int32_t> counts;
    std::vector<LogitEdit> edits;
  };
  Past random_past(std::int64_t columns) {
    Past past;
    for (std::int64_t i = 0; i < kCountRows * columns; ++i) {
      const std::int32_t times = uniform() < 0.7 ? 0 : below(4);
      past.counts.push_back(times | (uniform() < 0.2 ? kInPrompt : 0));
    }
    for (std::int64_t i = 0; i < kEdits; ++i) {
      past.edits.push_back(
          {below(columns), uniform() < 0.1 ? -INFINITY : static_cast<float>(4 * uniform() - 2)});
    }
    return past;
  }

  Selected by_cpu(Logits& logits, const std::vector<SamplingRule>& rules, Past& past,
                  bool all_greedy = false) {
    Selected out{std::vector<std::int32_t>(rules.size(), -7),
                 std::vector<std::int32_t>(rules.size(), -7)};
    cpu().sampling.select(
        cpu_stream(), {.logits = logits.host_view(),
                       .rules = rules.data(),
                       .edits = past.edits.data(),
                       .counts = {past.counts.data(), Dtype::kI32, {kCountRows, logits.columns}},
                       .tokens = out.tokens.data(),
                       .status = out.status.data(),
                       .all_greedy = all_greedy});
    return out;
  }
  Selected by_cuda(const View& logits, const std::vector<SamplingRule>& rules, const Past& past,
                   bool all_greedy = false, bool captured = false) {
    const std::int64_t rows = logits.shape[0], columns = logits.shape[1];
    const Tensor on_device = uploaded(rules), edits = uploaded(past.edits);
    const Tensor counts = uploaded(past.counts);
    Tensor tokens(device_arena(), Dtype::kI32, {rows}, "test");
    Tensor status(device_arena(), Dtype::kI32, {rows}, "test");
    const SelectArgs args{.logits = logits,
                          .rules = static_cast<const SamplingRule*>(on_device.view().data),
                          .edits = static_cast<const LogitEdit*>(edits.view().data),
                          .counts = counts.view().reshape({kCountRows, columns}),
                          .tokens = tokens.as<std::int32_t>(),
                          .status = status.as<std::int32_t>(),
                          .all_greedy = all_greedy};
    cuda().sampling.select(cuda_stream(), args);
    if (captured) {
      std::unique_ptr<DeviceGraph> graph = cuda().device.capture(
          cuda_stream(), [&] { cuda().sampling.select(cuda_stream(), args); });
      cuda().device.upload(cuda_stream(), std::vector<std::int32_t>(rules.size(), -5).data(),
                           tokens);
      graph->start();
    }
    return {fetched(tokens), fetched(status)};
  }
  void compare(Logits& logits, const std::vector<SamplingRule>& rules, Past& past) {
    const Selected want = by_cpu(logits, rules, past);
    const Selected got = by_cuda(logits.device, rules, past);
    for (std::size_t row = 0; row < rules.size(); ++row) {
      const SamplingRule& rule = rules[row];
      EXPECT_TRUE(got.tokens[row] == want.tokens[row] && got.status[row] == want.status[row])
          << "row " << row << " of " << logits.columns << " columns: " << got.tokens[row] << " ("
          << got.status[row] << "), wanted " << want.tokens[row] << " (" << want.status[row]
          << "): temperature " << rule.temperature << " top-k " << rule.top_k << " top-p "
          << rule.top_p << " min-p " << rule.min_p << " counts " << rule.counts_row << " edits "
          << rule.edits_end - rule.edits_begin << " forced " << rule.forced;
    }
  }

 private:
  std::uint32_t drawn_ = 0;
};

TEST_F(CudaSample, TokensAreTheCpus) {
  for (std::int64_t columns : {1, 2, 77, 1024, 5000, 128256}) {
    for (double scale : {0.5, 12.0}) {
      const std::int64_t rows = columns > 5000 ? 16 : 200;
      Logits logits = random_logits(rows, columns, scale);
      Past past = random_past(columns);
      compare(logits, random_rules(rows, columns), past);
    }
  }
}

TEST_F(CudaSample, EqualAndImpossibleTokens) {
  constexpr std::int64_t kRows = 100;
  for (std::int64_t columns : {77, 1100, 40000}) {
    std::vector<float> steps, equal(static_cast<std::size_t>(kRows * columns), 0.25f);
    for (std::int64_t i = 0; i < kRows * columns; ++i) {
      steps.push_back(i % 7 == 3 ? -INFINITY : static_cast<float>(i % 11));
    }
    Past past = random_past(columns);
    for (const std::vector<float>& values : {steps, equal}) {
      Logits logits = logits_of(kRows, columns, values);
      compare(logits, random_rules(kRows, columns), past);
    }
  }
}

TEST_F(CudaSample, RowsThatAreNotFinite) {
  constexpr std::int64_t kRows = 5, kColumns = 3000;
  Logits logits = random_logits(kRows, kColumns, 2);
  logits.host[17] = NAN;
  logits.host[kColumns + 2999] = INFINITY;
  std::fill_n(logits.host.begin() + 2 * kColumns, kColumns, -INFINITY);
  logits.host[3 * kColumns] = -1e30f;
  logits = logits_of(kRows, kColumns, logits.host);
  Past past = random_past(kColumns);
  std::vector<SamplingRule> rules(kRows, SamplingRule{.temperature = 1});
  compare(logits, rules, past);
  EXPECT_EQ(by_cuda(logits.device, rules, past).status, (std::vector<std::int32_t>{1, 1, 1, 0, 0}));
  rules.assign(kRows, {});
  EXPECT_EQ(by_cuda(logits.device, rules, past, true), by_cpu(logits, rules, past, true));
}

TEST_F(CudaSample, RowsAreIndependentAndGraphsRepeat) {
  constexpr std::int64_t kRows = 70, kColumns = 50000;
  Logits logits = random_logits(kRows, kColumns, 8);
  const Past past = random_past(kColumns);
  const std::vector<SamplingRule> rules = random_rules(kRows, kColumns);
  const Selected all = by_cuda(logits.device, rules, past);
  EXPECT_EQ(by_cuda(logits.device, rules, past, false, true), all);
  for (std::int64_t row = 0; row < kRows; ++row) {
    const auto at = static_cast<std::size_t>(row);
    const Selected alone =
        by_cuda(logits.device.view().rows(row, row + 1), {rules[at]}, past, false);
    EXPECT_EQ(alone.tokens[0], all.tokens[at]) << "row " << row;
  }
  const std::vector<SamplingRule> greedy(kRows);
  EXPECT_EQ(by_cuda(logits.device, greedy, past, true), by_cuda(logits.device, greedy, past));
}

TEST_F(CudaSample, TopLogitsAreTheCpus) {
  for (std::int64_t columns : {5, 1500, 60000}) {
    constexpr std::int64_t kRows = 6;
    Logits logits = random_logits(kRows, columns, 5);
    logits.host[1] = NAN;
    logits.host[static_cast<std::size_t>(columns) + 3] = INFINITY;
    std::fill_n(logits.host.begin() + 2 * columns, columns, -INFINITY);
    std::fill_n(logits.host.begin() + 3 * columns, columns, 1.5f);
    logits = logits_of(kRows, columns, logits.host);
    for (std::int64_t k : {1, 7, 300, 1024}) {
      const auto count = static_cast<std::size_t>(kRows * k);
      std::vector<float> want(count), got(count);
      std::vector<std::int32_t> ids(count);
      cpu().sampling.top_logits(cpu_stream(), {logits.host_view(),
                                               {want.data(), Dtype::kF32, {kRows, k}},
                                               {ids.data(), Dtype::kI32, {kRows, k}}});
      Tensor values(device_arena(), Dtype::kF32, {kRows, k}, "test");
      Tensor at(device_arena(), Dtype::kI32, {kRows, k}, "test");
      cuda().sampling.top_logits(cuda_stream(), {logits.device, values, at});
      cuda().device.fetch(cuda_stream(), values, got.data()).wait();
      EXPECT_EQ(fetched(at), ids) << columns << " columns, " << k << " largest";
      EXPECT_EQ(std::memcmp(got.data(), want.data(), count * sizeof(float)), 0)
          << columns << " columns, " << k << " largest";
    }
  }
}

TEST_F(CudaSample, CountsAndLastTokens) {
  constexpr std::int64_t kColumns = 300;
  const std::vector<std::int32_t> prompt = {1, 2, 2, 299}, output = {2, 5, 5};
  std::vector<std::int32_t> want(3 * kColumns, 9);
  const Tensor counts = uploaded(want), prompts = uploaded(prompt), outputs = uploaded(output);
  const View matrix = counts.view().reshape({3, kColumns});
  cuda().sampling.count(cuda_stream(),
                        {matrix, 1, prompts.as<std::int32_t>(), outputs.as<std::int32_t>(), 4, 3});
  cpu().sampling.count(
      cpu_stream(),
      {{want.data(), Dtype::kI32, {3, kColumns}}, 1, prompt.data(), output.data(), 4, 3});
  EXPECT_EQ(fetched(counts), want);

  const std::vector<std::int32_t> chosen = {5, 7, 8}, slots = {2, -1, 0};
  std::vector<SamplingRule> rules(3);
  rules[0].counts_row = 1;
  const Tensor tokens = uploaded(chosen), places = uploaded(slots), on_device = uploaded(rules);
  const Tensor last = uploaded(std::vector<std::int32_t>{-1, -1, -1});
  cuda().sampling.record(cuda_stream(),
                         {.tokens = tokens.as<std::int32_t>(),
                          .slots = places.as<std::int32_t>(),
                          .rules = static_cast<const SamplingRule*>(on_device.view().data),
                          .n = 3,
                          .last = last.as<std::int32_t>(),
                          .counts = matrix});
  ++want[kColumns + 5];
  EXPECT_EQ(fetched(counts), want);
  EXPECT_EQ(fetched(last), (std::vector<std::int32_t>{8, -1, 5}));

  const Tensor resolved = uploaded(std::vector<std::int32_t>{11, 12, 13});
  cuda().sampling.resolve(cuda_stream(), {.tokens = resolved.as<std::int32_t>(),
                                          .slots = places.as<std::int32_t>(),
                                          .n = 3,
                                          .last = last.as<std::int32_t>()});
  EXPECT_EQ(fetched(resolved), (std::vector<std::int32_t>{5, 12, 8}));
}

}  // namespace
}  // namespace bev::cuda_test
