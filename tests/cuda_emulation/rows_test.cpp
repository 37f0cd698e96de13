// Norms and losses of the CUDA tables against those of the CPU.
#include <gtest/gtest.h>

#include "kernels/loss.h"
#include "kernels/norm.h"
#include "kernels/optim.h"
#include "tests/cuda_emulation/emulated_stream.h"

namespace bev {
namespace cuda {
void qk_clip(const Stream& stream, const QkClipArgs& args);
}
void cuda_bound_logits(const Stream&, const View& lse, const View& max_logits);
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

// An f32 residual stream in a model of 16 bits.
void check_wide_norm(const NormCase& item, Dtype dtype, Schedule schedule) {
  SCOPED_TRACE(testing::Message() << item.rows << " x " << item.columns << " " << name_of(dtype));
  const Shape shape{item.rows, item.columns};
  Buffer x = random_buffer(item.residual ? dtype : Dtype::kF32, shape, 1, 3);
  Buffer residual = random_buffer(Dtype::kF32, shape, 2, 3), dy = random_buffer(dtype, shape, 5);
  Buffer weight = random_buffer(dtype, {item.columns}, 3);
  Buffer bias = random_buffer(dtype, {item.columns}, 4), dx(Dtype::kF32, shape);
  Buffer sum(Dtype::kF32, shape), y(dtype, shape), mean(Dtype::kF32, {item.rows});
  Buffer rstd(Dtype::kF32, {item.rows}), dweight(Dtype::kF32, {item.columns});
  ThreadPool pool(1);
  auto backward = [&](const NormKernels& kernels, const Stream& stream,
                      const NormBackwardArgs& at) {
    NormBackwardArgs args = at;
    args.mean = item.centred ? at.mean : View{};
    args.offset = item.offset;
    kernels.backward(stream, args);
  };
  const NormKernels& cpu = cpu_kernels().norm;
  norm_forward(cpu, {.pool = &pool}, item,
               {x.view(), residual.view(), weight.view(), bias.view(), sum.view(), y.view(),
                mean.view(), rstd.view(), nullptr});
  Buffer& s = item.residual ? sum : x;
  backward(cpu, {.pool = &pool},
           {.dy = dy.view(),
            .s = s.view(),
            .dsum = residual.view(),
            .weight = weight.view(),
            .mean = mean.view(),
            .rstd = rstd.view(),
            .dx = dx.view(),
            .dweight = dweight.view(),
            .dbias = {}});
  EmulatedStream stream({.schedule = schedule});
  DeviceTensor device_x(x.view()), device_residual(residual.view()), device_weight(weight.view());
  DeviceTensor device_bias(bias.view()), device_dy(dy.view()), device_s(s.view());
  DeviceTensor device_mean(mean.view()), device_rstd(rstd.view()), got_sum(Dtype::kF32, shape);
  DeviceTensor got_y(dtype, shape), got_mean(Dtype::kF32, {item.rows});
  DeviceTensor got_rstd(Dtype::kF32, {item.rows}), got_dx(residual.view());
  DeviceTensor got_dweight(Dtype::kF32, {item.columns});
  const NormKernels cuda = cuda_table(Family<NormKernels>{});
  norm_forward(cuda, stream, item,
               {device_x.view(), device_residual.view(), device_weight.view(), device_bias.view(),
                got_sum.view(), got_y.view(), got_mean.view(), got_rstd.view(), nullptr});
  backward(cuda, stream,
           {.dy = device_dy.view(),
            .s = device_s.view(),
            .dsum = got_dx.view(),
            .weight = device_weight.view(),
            .mean = device_mean.view(),
            .rstd = device_rstd.view(),
            .dx = got_dx.view(),
            .dweight = got_dweight.view(),
            .dbias = {}});
  EXPECT_TRUE(got_sum.intact() && got_y.intact() && got_dx.intact() && got_dweight.intact());
  if (item.residual) {
    EXPECT_TRUE(got_sum.bits() == sum.bits());
  }
  expect_near(got_y.values(), y.values(), 2 * epsilon_of(dtype));
  expect_near(got_rstd.values(), rstd.values(), 2e-6);
  expect_near(got_dx.values(), dx.values(), 1e-5);
  expect_near(got_dweight.values(), dweight.values(), 1e-5);
}

TEST(EmulatedNorm, OfAnF32StreamMatchesTheCpu) {
  int at = 0;
  for (const NormCase& item : std::vector<NormCase>{{3, 64},
                                                    {5, 65, true, true, true},
                                                    {7, 136, false, true, false, 1},
                                                    {2, 1000, true, true},
                                                    {2, 4096, true, true},
                                                    {1, 9000, false, true},
                                                    {3, 768, true, false, true}}) {
    for (Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
      check_wide_norm(item, dtype, kSchedules[++at % 3]);
      if (HasFailure()) return;
    }
  }
}

TEST(EmulatedAttention, BoundsLogitsByTheLargestLse) {
  for (auto [rows, heads] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {37, 5}, {300, 16}, {9, 300}}) {
    Buffer lse = random_buffer(Dtype::kF32, {rows, heads}, 1, 9);
    std::vector<double> want(static_cast<std::size_t>(heads), 2.5);
    const std::vector<double> values = lse.values();
    for (std::size_t i = 0; i < values.size(); ++i) {
      double& most = want[i % want.size()];
      most = std::max(most, values[i]);
    }
    EmulatedStream stream({.schedule = kSchedules[rows % 3]});
    DeviceTensor from(lse.view());
    Buffer before(Dtype::kF32, {heads}, std::vector<double>(want.size(), 2.5));
    DeviceTensor largest(before.view());
    cuda_bound_logits(stream, from.view(), largest.view());
    EXPECT_TRUE(largest.intact());
    EXPECT_EQ(largest.values(), want);
  }
}

TEST(EmulatedQkClip, ScalesRowsAsTheCpu) {
  constexpr std::int64_t kColumns = 300, kFirst = 170, kCount = 1200;
  const std::vector<std::int32_t> groups = {0, 1, 0, -1, 1};
  const std::vector<double> powers = {0.5, 0.25, 1, 0, 0.75};
  Buffer logits(Dtype::kF32, {4}, {3, 16, 5, 4});
  for (auto [main_dtype, values_dtype] : {std::pair{Dtype::kF32, Dtype::kBf16},
                                          {Dtype::kF32, Dtype::kF16},
                                          {Dtype::kBf16, Dtype::kBf16}}) {
    for (int skip : {0, 1}) {
      StepState state;
      state.skip = skip;
      Buffer main = random_buffer(main_dtype, {kCount}, 1);
      Buffer values(values_dtype, {kCount}, main.values());
      DeviceTensor device_main(main.view()), device_values(values.view());
      DeviceTensor device_logits(logits.view());
      DeviceArray<std::int32_t> device_groups(groups);
      DeviceArray<double> device_powers(powers);
      DeviceArray<StepState> device_state({state});
      QkClipArgs args{.main = main.view(),
                      .values = values.view(),
                      .first = kFirst,
                      .columns = kColumns,
                      .groups = groups.data(),
                      .powers = powers.data(),
                      .max_logits = logits.view(),
                      .group_heads = 2,
                      .threshold = 4.5,
                      .state = &state};
      ThreadPool pool(1);
      cpu_kernels().optim.qk_clip({.pool = &pool}, args);
      args.main = device_main.view(), args.values = device_values.view();
      args.groups = device_groups.data(), args.powers = device_powers.data();
      args.max_logits = device_logits.view(), args.state = device_state.data();
      EmulatedStream stream({.schedule = Schedule::kRandom});
      cuda::qk_clip(stream, args);
      EXPECT_TRUE(device_main.intact() && device_values.intact());
      expect_near(device_main.values(), main.values(), 2 * epsilon_of(main_dtype));
      expect_near(device_values.values(), values.values(), 2 * epsilon_of(values_dtype));
      EXPECT_EQ(device_main.values() == Buffer(main_dtype, {kCount}, numbers(kCount, 1)).values(),
                skip == 1);
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
