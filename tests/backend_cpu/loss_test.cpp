#include "kernels/loss.h"

#include <gtest/gtest.h>

#include "tests/backend_cpu/kernel_fixture.h"

namespace bev {
namespace {
using namespace kernel_test;

const double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  std::int64_t rows, vocabulary;
  double logit_scale = 1, softcap = 0;
  std::int64_t padding = 0;  // last columns at -infinity
  int parts = 1;             // number of ranks that split the vocabulary
};

struct Reference {
  std::vector<double> loss, gradient;
};

double transformed(const Case& c, double logit) {
  if (logit == -kInfinity) return logit;
  double z = c.logit_scale * logit;
  return c.softcap > 0 ? c.softcap * std::tanh(z / c.softcap) : z;
}

Reference reference(const Case& c, const std::vector<double>& logits,
                    const std::vector<std::int32_t>& targets, const std::vector<double>& weights,
                    double loss_factor) {
  Reference out{.loss = std::vector<double>(static_cast<std::size_t>(c.rows)),
                .gradient = std::vector<double>(logits.size())};
  for (std::int64_t row = 0; row < c.rows; ++row) {
    auto at = static_cast<std::size_t>(row);
    if (targets[at] < 0) continue;
    const double* x = logits.data() + row * c.vocabulary;
    double most = -kInfinity, sum = 0;
    for (std::int64_t j = 0; j < c.vocabulary; ++j) most = std::max(most, transformed(c, x[j]));
    for (std::int64_t j = 0; j < c.vocabulary; ++j) sum += std::exp(transformed(c, x[j]) - most);
    out.loss[at] = std::log(sum) + most - transformed(c, x[targets[at]]);
    for (std::int64_t j = 0; j < c.vocabulary; ++j) {
      if (x[j] == -kInfinity) continue;
      double z = transformed(c, x[j]);
      double slope = c.softcap > 0 ? 1 - z * z / (c.softcap * c.softcap) : 1;
      double p = std::exp(z - most) / sum - (j == targets[at] ? 1 : 0);
      out.gradient[static_cast<std::size_t>(row * c.vocabulary + j)] =
          loss_factor * weights[at] * p * slope * c.logit_scale;
    }
  }
  return out;
}

// The weights of the tokens' losses in the objective.
struct Weights {
  Buffer& values;
  const double* loss_factor;
};

// Runs the three passes over the parts, with the reductions between them that the op does.
struct Outcome {
  std::vector<double> loss, gradient;
  std::string bits;
};

Outcome run_parts(const Kernels& kernels, const Stream& stream, const Case& c, Dtype dtype,
                  const std::vector<double>& logits, const std::vector<std::int32_t>& targets,
                  const Weights& weights, bool with_gradient) {
  std::vector<Buffer> parts, maxima, stats;
  std::vector<std::int64_t> first;
  auto rows = static_cast<std::size_t>(c.rows);
  for (int part = 0; part < c.parts; ++part) {
    std::int64_t begin = c.vocabulary * part / c.parts, end = c.vocabulary * (part + 1) / c.parts;
    std::vector<double> local;
    for (std::int64_t row = 0; row < c.rows; ++row) {
      local.insert(local.end(), logits.begin() + row * c.vocabulary + begin,
                   logits.begin() + row * c.vocabulary + end);
    }
    first.push_back(begin);
    parts.emplace_back(dtype, Shape{c.rows, end - begin}, local);
    maxima.emplace_back(dtype, Shape{c.rows});
    stats.emplace_back(dtype, Shape{2, c.rows});
  }
  auto chunk = [&](std::size_t part) {
    return LossChunk{.logits = parts[part].view(),
                     .targets = targets.data(),
                     .first_row = first[part],
                     .logit_scale = c.logit_scale,
                     .softcap = c.softcap};
  };
  std::vector<double> most(rows, -kInfinity), sums(2 * rows, 0);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    kernels.loss.row_max(stream, {.chunk = chunk(part), .row_max = maxima[part].view()});
    std::vector<double> local = maxima[part].values();
    for (std::size_t i = 0; i < rows; ++i) most[i] = std::max(most[i], local[i]);
  }
  Buffer row_max(dtype, {c.rows}, most);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    kernels.loss.row_sum(
        stream, {.chunk = chunk(part), .row_max = row_max.view(), .stats = stats[part].view()});
    std::vector<double> local = stats[part].values();
    for (std::size_t i = 0; i < 2 * rows; ++i) sums[i] += local[i];
  }
  Buffer all_stats(dtype, {2, c.rows}, sums);
  Outcome run{.loss = {}, .gradient = std::vector<double>(logits.size()), .bits = {}};
  for (std::size_t part = 0; part < parts.size(); ++part) {
    Buffer token_loss(dtype, {c.rows});
    kernels.loss.gradient(stream, {.chunk = chunk(part),
                                   .row_max = row_max.view(),
                                   .stats = all_stats.view(),
                                   .weights = weights.values.view(),
                                   .loss_factor = weights.loss_factor,
                                   .token_loss = token_loss.view(),
                                   .with_gradient = with_gradient});
    run.loss = token_loss.values();
    run.bits += token_loss.bits() + parts[part].bits();
    std::vector<double> local = parts[part].values();
    std::int64_t columns = parts[part].view().shape[1];
    for (std::size_t i = 0; i < local.size(); ++i) {
      auto index = static_cast<std::int64_t>(i);
      run.gradient[static_cast<std::size_t>(index / columns * c.vocabulary + first[part] +
                                            index % columns)] = local[i];
    }
  }
  return run;
}

// loss_factor null: 1.
void run_case(const Case& c, Dtype dtype, Dtype weight_dtype, const double* loss_factor) {
  SCOPED_TRACE(concat(c.rows, " x ", c.vocabulary, " scale ", c.logit_scale, " cap ", c.softcap,
                      " padding ", c.padding, " parts ", c.parts));
  std::vector<std::int32_t> targets;
  std::vector<double> weights;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    auto target = static_cast<std::int32_t>(row * 7919 % (c.vocabulary - c.padding));
    targets.push_back(row % 5 == 3 ? -100 : target);
    // Thirds are not exact in f32.
    weights.push_back(row % 7 == 6 ? 0.0 : (row % 2 == 0 ? -1.0 : 1.0) / (row % 3 + 1));
  }
  Buffer values = random_buffer(dtype, {c.rows, c.vocabulary}, 1, 30);
  Buffer weight_values(weight_dtype, {c.rows}, weights);
  std::vector<double> logits = values.values();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    auto column = static_cast<std::int64_t>(i) % c.vocabulary;
    if (column >= c.vocabulary - c.padding) logits[i] = -kInfinity;
  }
  Reference want = reference(c, logits, targets, weight_values.values(),
                             loss_factor != nullptr ? *loss_factor : 1);
  double tolerance = dtype == Dtype::kF64 ? 1e-12 : 4e-6;
  on_every_level([&](const Kernels& kernels, const Stream& stream) {
    auto run = [&](bool with_gradient) {
      return run_parts(kernels, stream, c, dtype, logits, targets, {weight_values, loss_factor},
                       with_gradient);
    };
    Outcome with = run(true), without = run(false);
    expect_near(with.loss, want.loss, tolerance);
    expect_near(without.loss, want.loss, tolerance);
    expect_near(with.gradient, want.gradient, tolerance);
    for (bool with_gradient : {true, false}) {
      if (c.parts > 1) break;
      Buffer whole(dtype, {c.rows, c.vocabulary}, logits), token_loss(dtype, {c.rows});
      kernels.loss.whole(stream, {.chunk = {.logits = whole.view(),
                                            .targets = targets.data(),
                                            .logit_scale = c.logit_scale,
                                            .softcap = c.softcap},
                                  .weights = weight_values.view(),
                                  .loss_factor = loss_factor,
                                  .token_loss = token_loss.view(),
                                  .with_gradient = with_gradient});
      EXPECT_TRUE((with_gradient ? with : without).bits == token_loss.bits() + whole.bits());
    }
    return with.bits + without.bits;
  });
}

void run_case(const Case& c) {
  const double factor = 0.5;
  run_case(c, Dtype::kF64, Dtype::kF32, &factor);
  run_case(c, Dtype::kF64, Dtype::kF64, nullptr);
  run_case(c, Dtype::kF32, Dtype::kF32, &factor);
  run_case(c, Dtype::kF32, Dtype::kF32, nullptr);
}

TEST(Loss, MatchesTheReference) {
  run_case({.rows = 1, .vocabulary = 1});
  run_case({.rows = 9, .vocabulary = 301});
  run_case({.rows = 40, .vocabulary = 5003});
}

TEST(Loss, ScaleSoftcapAndPadding) {
  run_case({.rows = 9, .vocabulary = 301, .logit_scale = 0.3});
  run_case({.rows = 9, .vocabulary = 301, .softcap = 20});
  run_case({.rows = 9, .vocabulary = 301, .logit_scale = 0.5, .softcap = 10, .padding = 13});
  run_case({.rows = 9, .vocabulary = 301, .padding = 13});
}

TEST(Loss, AnyCutOfTheVocabularyGivesTheSameLoss) {
  run_case({.rows = 9, .vocabulary = 301, .softcap = 20, .padding = 120, .parts = 3});
  run_case({.rows = 9, .vocabulary = 301, .padding = 120, .parts = 3});
  run_case({.rows = 9, .vocabulary = 5, .parts = 7});  // some parts are empty
}

TEST(Loss, TotalAddsWeightedLosses) {
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32}) {
    for (std::int64_t rows : {0, 1, 1000}) {
      Buffer losses = random_buffer(dtype, {rows}, 3, 10);
      std::vector<float> weights;
      double want = 7.5;
      for (double loss : losses.values()) {
        weights.push_back(weights.size() % 4 == 1 ? 0.0f : 0.5f);
        want += static_cast<double>(weights.back()) * loss;
      }
      on_every_level([&](const Kernels& kernels, const Stream& stream) {
        double total = 7.5;
        kernels.loss.total(
            stream, {.token_loss = losses.view(), .weights = weights.data(), .total = &total});
        EXPECT_NEAR(total, want, 1e-11);
        return std::string(reinterpret_cast<const char*>(&total), sizeof total);
      });
    }
  }
}

TEST(Loss, NoRows) { run_case({.rows = 0, .vocabulary = 10}); }

TEST(Loss, NanLogitsGiveANanLoss) {
  std::vector<double> logits = numbers(300, 1);
  logits[170] = std::numeric_limits<double>::quiet_NaN();
  on_every_level([&](const Kernels& kernels, const Stream& stream) {
    Case c{.rows = 3, .vocabulary = 100};
    Buffer ones(Dtype::kF32, {3}, {1, 1, 1});
    Outcome run =
        run_parts(kernels, stream, c, Dtype::kF32, logits, {1, 2, 3}, {ones, nullptr}, true);
    EXPECT_TRUE(std::isfinite(run.loss[0]));
    EXPECT_TRUE(std::isnan(run.loss[1]));
    EXPECT_TRUE(std::isfinite(run.loss[2]));
    return std::string();
  });
}
}  // namespace
}  // namespace bev
