#include "kernels/loss.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/backend_cuda/family.h"

namespace bev::cuda_test {
namespace {

struct LossCase {
  std::int64_t rows, columns;
  double scale = 1, softcap = 0;
  std::int64_t padding = 0;
  std::int64_t first_row = 0;
};

// Relative difference of two vectors in the 2-norm.
double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

class CudaLoss : public CudaRig {
 protected:
  void check(const LossCase& item, Dtype dtype) {
    SCOPED_TRACE(concat(item.rows, " x ", item.columns, " scale ", item.scale, " cap ",
                        item.softcap, " padding ", item.padding, " ", name_of(dtype)));
    Twin logits = padded_logits(item, dtype);
    Twin without = copy_of(logits), with = copy_of(logits);
    std::vector<std::int32_t> ids;
    std::vector<float> weight;
    for (std::int64_t row = 0; row < item.rows; ++row) {
      const std::int64_t target = item.first_row + row * 7919 % (item.columns - item.padding);
      // Ignored, in another part of the vocabulary, or in this one.
      ids.push_back(static_cast<std::int32_t>(row % 5 == 3    ? -100
                                              : row % 11 == 4 ? item.first_row + item.columns
                                                              : target));
      weight.push_back(row % 7 == 6 ? 0.0f : 0.25f * static_cast<float>(row % 3 + 1));
    }
    Twin targets = words(ids), weights = words(weight), factor = words<double>({0.5});
    Twin most = poisoned(Dtype::kF32, {item.rows}), stats = poisoned(Dtype::kF32, {2, item.rows});
    Twin losses = poisoned(Dtype::kF32, {item.rows}), total = words<double>({3.0});
    auto run = [&](const Kernels& kernels, const Stream& stream, Tensor Twin::*side) {
      const LossChunk chunk{.logits = (logits.*side).view(),
                            .targets = (targets.*side).as<std::int32_t>(),
                            .first_row = item.first_row,
                            .logit_scale = item.scale,
                            .softcap = item.softcap};
      kernels.loss.row_max(stream, {chunk, (most.*side).view()});
      kernels.loss.row_sum(stream, {chunk, (most.*side).view(), (stats.*side).view()});
      kernels.loss.gradient(stream, {.chunk = chunk,
                                     .row_max = (most.*side).view(),
                                     .stats = (stats.*side).view(),
                                     .weights = (weights.*side).view(),
                                     .loss_factor = (factor.*side).as<double>(),
                                     .token_loss = (losses.*side).view(),
                                     .with_gradient = true});
      kernels.loss.total(
          stream, {(losses.*side).view(), (weights.*side).as<float>(), (total.*side).as<double>()});
    };
    run(cpu(), cpu_stream(), &Twin::exact);
    run(cuda(), cuda_stream(), &Twin::device);
    // In one pass, as if the vocabulary were not split.
    for (Twin* again : {&without, &with}) {
      Twin again_losses{losses.exact, poisoned(Dtype::kF32, {item.rows}).device};
      cuda().loss.whole(cuda_stream(), {.chunk = {.logits = again->device.view(),
                                                  .targets = targets.device.as<std::int32_t>(),
                                                  .first_row = item.first_row,
                                                  .logit_scale = item.scale,
                                                  .softcap = item.softcap},
                                        .weights = weights.device.view(),
                                        .loss_factor = factor.device.as<double>(),
                                        .token_loss = again_losses.device.view(),
                                        .with_gradient = again == &with});
      EXPECT_LT(error(again_losses), 2e-5);
    }
    with.exact = logits.exact;
    EXPECT_LT(error(with), dtype == Dtype::kF32 ? 2e-5 : 2 * tolerance(dtype));
    // Scaled or capped logits are rounded to their dtype before use.
    const bool rounded = dtype != Dtype::kF32 && (item.scale != 1 || item.softcap > 0);
    const double bound = rounded ? 10 * tolerance(dtype) : 2e-5;
    EXPECT_LT(error(most), bound);
    EXPECT_LT(error(losses), bound);
    EXPECT_LT(error(total), bound);
    EXPECT_LT(error(logits), rounded ? 0.1 : dtype == Dtype::kF32 ? 2e-5 : 2 * tolerance(dtype));
  }

  // Losses of a chunk, whose logits become their gradient; in one pass or in three.
  std::vector<double> losses_of(const LossChunk& chunk, const View& weights,
                                const double* loss_factor, bool whole) {
    const std::int64_t rows = chunk.logits.shape[0];
    Twin most = poisoned(Dtype::kF32, {rows}), stats = poisoned(Dtype::kF32, {2, rows});
    Twin losses = poisoned(Dtype::kF32, {rows});
    if (whole) {
      cuda().loss.whole(cuda_stream(), {chunk, weights, loss_factor, losses.device.view(), true});
    } else {
      cuda().loss.row_max(cuda_stream(), {chunk, most.device.view()});
      cuda().loss.row_sum(cuda_stream(), {chunk, most.device.view(), stats.device.view()});
      cuda().loss.gradient(cuda_stream(), {chunk, most.device.view(), stats.device.view(), weights,
                                           loss_factor, losses.device.view(), true});
    }
    return download(losses.device);
  }
  // A copy of the same values in other device memory.
  Twin copy_of(const Twin& logits) {
    const double* values = logits.exact.as<double>();
    return twin(logits.device.dtype(), logits.device.shape(),
                std::vector<double>(values, values + logits.exact.numel()));
  }
  Twin padded_logits(const LossCase& item, Dtype dtype) {
    Twin plain = random(dtype, {item.rows, item.columns}, 12);
    std::vector<double> values;
    for (std::int64_t i = 0; i < item.rows * item.columns; ++i) {
      const bool pad = i % item.columns >= item.columns - item.padding;
      values.push_back(pad ? -std::numeric_limits<double>::infinity()
                           : plain.exact.as<double>()[i]);
    }
    return twin(dtype, {item.rows, item.columns}, values);
  }
};

TEST_F(CudaLoss, MatchesTheCpu) {
  for (Dtype dtype : kModelDtypes) {
    check({.rows = 1, .columns = 33}, dtype);
    check({.rows = 9, .columns = 301}, dtype);
    check({.rows = 23, .columns = 5000, .first_row = 5000}, dtype);
    check({.rows = 12, .columns = 32000}, dtype);
    check({.rows = 12, .columns = 50257}, dtype);
    check({.rows = 5, .columns = 151936}, dtype);  // more than shared memory holds
    // More rows than blocks, so that a block processes several.
    check({.rows = 901, .columns = 304}, dtype);
    check({.rows = 901, .columns = 301}, dtype);
    check({.rows = 301, .columns = 60000}, dtype);
  }
}

TEST_F(CudaLoss, ScaleSoftcapAndPadding) {
  for (Dtype dtype : kModelDtypes) {
    check({.rows = 9, .columns = 304, .scale = 0.3}, dtype);
    check({.rows = 9, .columns = 304, .softcap = 20}, dtype);
    check({.rows = 9, .columns = 301, .scale = 0.5, .softcap = 10, .padding = 13}, dtype);
    check({.rows = 9, .columns = 304, .padding = 13}, dtype);
  }
}

// Padding is NaN, and the target of another part of the vocabulary lies in it.
TEST_F(CudaLoss, RowsMayBePadded) {
  constexpr std::int64_t kRows = 200, kColumns = 301, kStride = 320;
  Twin weights = random(Dtype::kF32, {kRows}), factor = words<double>({0.5});
  std::vector<std::int32_t> ids;
  for (int row = 0; row < kRows; ++row) ids.push_back(row % 7 == 3 ? 310 : row % 301);
  Twin targets = words(ids);
  for (Dtype dtype : kModelDtypes) {
    for (double softcap : {0.0, 20.0}) {
      Twin drawn = random(dtype, {kRows, kStride}, 12);
      std::vector<double> plain_values, padded_values;
      for (std::int64_t i = 0; i < kRows * kStride; ++i) {
        const bool pads = i % kStride >= kColumns;
        if (!pads) plain_values.push_back(drawn.exact.as<double>()[i]);
        padded_values.push_back(pads ? std::nan("") : drawn.exact.as<double>()[i]);
      }
      for (bool whole : {true, false}) {
        std::vector<std::vector<double>> losses, gradients;
        for (bool padded : {false, true}) {
          Twin logits = padded ? twin(dtype, {kRows, kStride}, padded_values)
                               : twin(dtype, {kRows, kColumns}, plain_values);
          const LossChunk chunk{.logits = logits.device.view(),
                                .targets = targets.device.as<std::int32_t>(),
                                .softcap = softcap,
                                .logits_in_row = padded ? kColumns : 0};
          losses.push_back(losses_of(chunk, weights.device, factor.device.as<double>(), whole));
          gradients.emplace_back();
          const std::vector<double> got = download(logits.device);
          for (std::size_t i = 0; i < got.size(); ++i) {
            const auto stride = static_cast<std::size_t>(padded ? kStride : kColumns);
            if (i % stride < kColumns) gradients.back().push_back(got[i]);
          }
        }
        EXPECT_LT(relative_difference(losses[1], losses[0]), 2e-5);
        EXPECT_LT(relative_difference(gradients[1], gradients[0]), tolerance(dtype));
      }
    }
  }
}

// As in the gradient of log-probabilities: weights of either sign, without a loss factor.
TEST_F(CudaLoss, WeightsNeedNoFactor) {
  constexpr std::int64_t kRows = 70;
  for (Dtype dtype : kModelDtypes) {
    for (std::int64_t columns : {301, 304, 60000}) {
      for (bool whole : {true, false}) {
        SCOPED_TRACE(concat(name_of(dtype), " ", columns, whole ? " whole" : ""));
        Twin logits = random(dtype, {kRows, columns}, 12), weights = random(Dtype::kF32, {kRows});
        std::vector<std::int32_t> ids;
        for (std::int32_t row = 0; row < kRows; ++row) ids.push_back(row % 5 == 3 ? -100 : row);
        Twin targets = words(ids), losses = poisoned(Dtype::kF32, {kRows});
        cpu().loss.whole(cpu_stream(), {.chunk = {.logits = logits.exact.view(),
                                                  .targets = targets.exact.as<std::int32_t>()},
                                        .weights = weights.exact.view(),
                                        .token_loss = losses.exact.view(),
                                        .with_gradient = true});
        const std::vector<double> got = losses_of(
            {.logits = logits.device.view(), .targets = targets.device.as<std::int32_t>()},
            weights.device, nullptr, whole);
        const double* exact = losses.exact.as<double>();
        EXPECT_LT(relative_difference(got, {exact, exact + kRows}), 2e-5);
        EXPECT_LT(error(logits), dtype == Dtype::kF32 ? 2e-5 : 2 * tolerance(dtype));
      }
    }
  }
}

// With or without a gradient, alone or among others.
TEST_F(CudaLoss, ALossHasTheSameBitsInAnyChunk) {
  constexpr std::int64_t kRows = 300;
  for (std::int64_t columns : {500, 50304, 128256}) {
    for (double softcap : {0.0, 30.0}) {
      const std::int64_t rows = columns > 50304 ? 140 : kRows;
      Twin logits = random(Dtype::kF32, {rows, columns}, 20);
      std::vector<std::int32_t> ids;
      for (std::int64_t row = 0; row < rows; ++row) {
        ids.push_back(static_cast<std::int32_t>(row * 7919 % (columns - 47)));
      }
      Twin targets = words(ids), weights = words(std::vector<float>(ids.size(), 0.5f));
      const auto losses_of_rows = [&](std::int64_t begin, std::int64_t end, bool with_gradient) {
        Twin some = copy_of(part(logits, begin, end));
        Twin losses = poisoned(Dtype::kF32, {end - begin});
        cuda().loss.whole(cuda_stream(),
                          {.chunk = {.logits = some.device.view(),
                                     .targets = targets.device.as<std::int32_t>() + begin,
                                     .softcap = softcap,
                                     .logits_in_row = columns - 47},
                           .weights = part(weights, begin, end).device.view(),
                           .token_loss = losses.device.view(),
                           .with_gradient = with_gradient});
        return download(losses.device);
      };
      const std::vector<double> all = losses_of_rows(0, rows, true);
      EXPECT_EQ(losses_of_rows(0, rows, false), all);
      for (std::int64_t row : {std::int64_t{0}, std::int64_t{77}, rows - 1}) {
        EXPECT_EQ(losses_of_rows(row, row + 1, false)[0], all[static_cast<std::size_t>(row)]);
      }
    }
  }
  EXPECT_FALSE(cuda_exact_kernels().loss.logits.narrow);
  EXPECT_EQ(cuda_exact_kernels().loss.logits.row_multiple, cuda().loss.logits.row_multiple);
}

TEST_F(CudaLoss, ANanLogitGivesANanLossInItsRowOnly) {
  std::vector<double> values(3 * 128, 0.5);
  values[128 + 77] = std::nan("");
  Twin logits = twin(Dtype::kF32, {3, 128}, values), targets = words<std::int32_t>({1, 2, 3});
  Twin most = poisoned(Dtype::kF32, {3}), stats = poisoned(Dtype::kF32, {2, 3});
  Twin losses = poisoned(Dtype::kF32, {3});
  const LossChunk chunk{.logits = logits.device.view(),
                        .targets = targets.device.as<std::int32_t>()};
  cuda().loss.row_max(cuda_stream(), {chunk, most.device.view()});
  cuda().loss.row_sum(cuda_stream(), {chunk, most.device.view(), stats.device.view()});
  cuda().loss.gradient(cuda_stream(), {.chunk = chunk,
                                       .row_max = most.device.view(),
                                       .stats = stats.device.view(),
                                       .token_loss = losses.device.view()});
  Twin whole_losses = poisoned(Dtype::kF32, {3});
  cuda().loss.whole(cuda_stream(), {.chunk = chunk, .token_loss = whole_losses.device.view()});
  for (const Twin* each : {&losses, &whole_losses}) {
    std::vector<double> got = download(each->device);
    EXPECT_NEAR(got[0], std::log(128.0), 1e-6);
    EXPECT_TRUE(std::isnan(got[1]));
    EXPECT_NEAR(got[2], std::log(128.0), 1e-6);
  }
}

}  // namespace
}  // namespace bev::cuda_test
