// Norms and losses of the CUDA tables against those of the CPU.
#include <gtest/gtest.h>

#include "kernels/loss.h"
#include "kernels/norm.h"
#include "tests/cuda_emulation/emulated_stream.h"

namespace bev {
NormKernels cuda_table(Family<NormKernels>);
LossKernels cuda_table(Family<LossKernels>);
}  // namespace bev

namespace bev::cuda_emulation {
namespace {
using namespace kernel_test;

const Schedule kSchedules[] = {Schedule::kFirst, Schedule::kLast, Schedule::kRandom};

struct NormCase {
  std::int64_t rows, columns;
  bool centred = false, residual = false, bias = false;
  double offset = 0;
};

struct NormTensors {
  View x, residual, weight, bias, sum, y, mean, rstd;
  float* amax;
};

void norm_forward(const NormKernels& kernels, const Stream& stream, const NormCase& item,
                  const NormTensors& at) {
  kernels.forward(stream, {.x = at.x,
                           .residual = item.residual ? at.residual : View{},
                           .sum = item.residual ? at.sum : View{},
                           .y = at.y,
                           .weight = at.weight,
                           .bias = item.bias ? at.bias : View{},
                           .mean = item.centred ? at.mean : View{},
                           .rstd = at.rstd,
                           .epsilon = 1e-5,
                           .offset = item.offset,
                           .amax = at.amax});
}

void check_norm(const NormCase& item, Dtype dtype, Schedule schedule) {
  SCOPED_TRACE(testing::Message() << item.rows << " x " << item.columns << " " << name_of(dtype));
  const Shape shape{item.rows, item.columns};
  Buffer x = random_buffer(dtype, shape, 1, 3), residual = random_buffer(dtype, shape, 2, 3);
  Buffer weight = random_buffer(dtype, {item.columns}, 3);
  Buffer bias = random_buffer(dtype, {item.columns}, 4);
  Buffer sum(dtype, shape), y(dtype, shape), mean(Dtype::kF32, {item.rows});
  Buffer rstd(Dtype::kF32, {item.rows});
  float amax = 0.25f;
  ThreadPool pool(1);
  norm_forward(cpu_kernels().norm, {.pool = &pool}, item,
               {x.view(), residual.view(), weight.view(), bias.view(), sum.view(), y.view(),
                mean.view(), rstd.view(), &amax});
  EmulatedStream stream({.schedule = schedule});
  DeviceTensor device_x(x.view()), device_residual(residual.view()), device_weight(weight.view());
  DeviceTensor device_bias(bias.view()), got_sum(dtype, shape), got_y(dtype, shape);
  DeviceTensor got_mean(Dtype::kF32, {item.rows}), got_rstd(Dtype::kF32, {item.rows});
  DeviceArray<float> got_amax({0.25f});
  norm_forward(cuda_table(Family<NormKernels>{}), stream, item,
               {device_x.view(), device_residual.view(), device_weight.view(), device_bias.view(),
                got_sum.view(), got_y.view(), got_mean.view(), got_rstd.view(), got_amax.data()});
  EXPECT_TRUE(got_sum.intact() && got_y.intact() && got_mean.intact() && got_rstd.intact());
  if (item.residual) {
    EXPECT_TRUE(got_sum.bits() == sum.bits());
  }
  const double tolerance = dtype == Dtype::kF32 ? 2e-6 : 2 * epsilon_of(dtype);
  expect_near(got_y.values(), y.values(), tolerance);
  expect_near(got_rstd.values(), rstd.values(), 2e-6);
  expect_near(got_mean.values(), mean.values(), 2e-6);
  expect_near({got_amax.values()[0]}, {amax}, tolerance);
}

TEST(EmulatedNorm, ForwardMatchesTheCpu) {
  int at = 0;
  for (const NormCase& item : std::vector<NormCase>{{3, 64},
                                                    {5, 65, true, true, true},
                                                    {3, 768, true, false, true},
                                                    {7, 136, false, true, false, 1},
                                                    {2, 1000, true, true, false},
                                                    {2, 2048},
                                                    {2, 4096, true, true},
                                                    {1, 8192, false, true},
                                                    {1, 20000, true},
                                                    {1, 40000, false, true},
                                                    {0, 16}}) {
    for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
      check_norm(item, dtype, kSchedules[++at % 3]);
      if (HasFailure()) return;
    }
  }
}

struct LossCase {
  std::int64_t rows, vocabulary;
  double logit_scale = 1, softcap = 0;
  std::int64_t padding = 0;  // columns after the vocabulary
  bool with_gradient = true;
};

// The logits, which may become gradients, and the losses of the tokens.
struct LossResult {
  std::vector<double> logits, token_loss;
};

void check_loss(const LossCase& item, Dtype dtype, bool whole, Schedule schedule) {
  SCOPED_TRACE(testing::Message() << item.rows << " x " << item.vocabulary << " " << name_of(dtype)
                                  << (whole ? " whole" : " in passes"));
  const std::int64_t stride = item.vocabulary + item.padding;
  Buffer logits = random_buffer(dtype, {item.rows, stride}, 1, 20);
  Buffer wide(Dtype::kF32, {item.rows, stride}, logits.values());
  std::vector<std::int32_t> targets;
  for (std::int64_t row = 0; row < item.rows; ++row) {
    const auto target = static_cast<std::int32_t>(row * 7919 % item.vocabulary);
    targets.push_back(row % 5 == 3 ? -100 : target);
  }
  Buffer weights = random_buffer(Dtype::kF32, {item.rows}, 3);
  const auto chunk = [&](const View& view, const std::int32_t* at) {
    return LossChunk{.logits = view,
                     .targets = at,
                     .logit_scale = item.logit_scale,
                     .softcap = item.softcap,
                     .logits_in_row = item.padding > 0 ? item.vocabulary : 0};
  };
  ThreadPool pool(1);
  Buffer token_loss(Dtype::kF32, {item.rows});
  const double factor = 0.7;
  cpu_kernels().loss.whole({.pool = &pool}, {.chunk = chunk(wide.view(), targets.data()),
                                             .weights = weights.view(),
                                             .loss_factor = &factor,
                                             .token_loss = token_loss.view(),
                                             .with_gradient = item.with_gradient});
  EmulatedStream stream({.schedule = schedule});
  const LossKernels cuda = cuda_table(Family<LossKernels>{});
  DeviceTensor got(logits.view()), got_loss(Dtype::kF32, {item.rows}),
      device_weights(weights.view());
  DeviceTensor row_max(Dtype::kF32, {item.rows}), stats(Dtype::kF32, {2, item.rows});
  DeviceArray<std::int32_t> device_targets(targets);
  DeviceArray<double> device_factor({factor});
  const LossChunk device_chunk = chunk(got.view(), device_targets.data());
  if (whole) {
    cuda.whole(stream, {.chunk = device_chunk,
                        .weights = device_weights.view(),
                        .loss_factor = device_factor.data(),
                        .token_loss = got_loss.view(),
                        .with_gradient = item.with_gradient});
  } else {
    cuda.row_max(stream, {.chunk = device_chunk, .row_max = row_max.view()});
    cuda.row_sum(stream, {.chunk = device_chunk, .row_max = row_max.view(), .stats = stats.view()});
    cuda.gradient(stream, {.chunk = device_chunk,
                           .row_max = row_max.view(),
                           .stats = stats.view(),
                           .weights = device_weights.view(),
                           .loss_factor = device_factor.data(),
                           .token_loss = got_loss.view(),
                           .with_gradient = item.with_gradient});
  }
  EXPECT_TRUE(got.intact() && got_loss.intact());
  // In passes, 16-bit logits are replaced by rounded ones.
  const bool rounded =
      dtype != Dtype::kF32 && !whole && (item.softcap > 0 || item.logit_scale != 1);
  expect_near(got_loss.values(), token_loss.values(), rounded ? 8 * epsilon_of(dtype) : 1e-5);
  if (!item.with_gradient) return;
  const double tolerance = dtype == Dtype::kF32 ? 1e-5 : (rounded ? 40 : 4) * epsilon_of(dtype);
  const std::vector<double> have = got.values(), want = wide.values();
  for (std::int64_t i = 0; i < item.rows; ++i) {
    const auto begin = i * stride, end = begin + item.vocabulary;
    expect_near({have.begin() + begin, have.begin() + end},
                {want.begin() + begin, want.begin() + end}, tolerance);
  }
}

TEST(EmulatedLoss, MatchesTheCpu) {
  int at = 0;
  for (const LossCase& item : std::vector<LossCase>{{5, 7},
                                                    {4, 64, 0.5},
                                                    {6, 1000, 1, 15},
                                                    {3, 2048, 1, 0, 8},
                                                    {2, 5001},
                                                    {2, 12000, 1, 30, 64},
                                                    {3, 300, 1, 0, 0, false}}) {
    for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
      for (bool whole : {false, true}) check_loss(item, dtype, whole, kSchedules[++at % 3]);
      if (HasFailure()) return;
    }
  }
}

TEST(EmulatedLoss, TotalAddsUp) {
  for (std::int64_t count : {1, 33, 5000}) {
    EmulatedStream stream;
    Buffer losses = random_buffer(Dtype::kF32, {count}, 1);
    DeviceTensor device_losses(losses.view());
    DeviceArray<float> weights(std::vector<float>(static_cast<std::size_t>(count), 0.5f));
    DeviceArray<double> total({2.5});
    cuda_table(Family<LossKernels>{})
        .total(
            stream,
            {.token_loss = device_losses.view(), .weights = weights.data(), .total = total.data()});
    double want = 2.5;
    for (double x : losses.values()) want += 0.5 * x;
    EXPECT_NEAR(total.values()[0], want, 1e-6 * std::sqrt(static_cast<double>(count)));
  }
}

}  // namespace
}  // namespace bev::cuda_emulation
