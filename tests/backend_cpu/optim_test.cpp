#include <gtest/gtest.h>

#include "tests/backend_cpu/kernel_fixture.h"

namespace bev {
namespace {
using namespace kernel_test;

StepState some_state(std::int64_t update) {
  return {.random_key = 0,
          .iteration = update,
          .update = update,
          .lr = 0.01,
          .weight_decay = 0.1,
          .loss_factor = 1,
          .grad_multiplier = 0.5,
          .skip = 0};
}

struct Types {
  Dtype main, grad, values;
};
const std::vector<Types> kTypes = {
    {Dtype::kF32, Dtype::kF32, Dtype::kF32}, {Dtype::kF32, Dtype::kF32, Dtype::kBf16},
    {Dtype::kF32, Dtype::kF32, Dtype::kF16}, {Dtype::kF32, Dtype::kF64, Dtype::kBf16},
    {Dtype::kF64, Dtype::kF64, Dtype::kF64}, {Dtype::kF64, Dtype::kF32, Dtype::kF64}};

void check_adam(const Types& types, std::int64_t size, bool decoupled, std::int64_t update) {
  SCOPED_TRACE(concat(name_of(types.main), " ", name_of(types.values), " ", size, " decoupled ",
                      decoupled, " update ", update));
  Buffer main = random_buffer(types.main, {size}, 1), grad = random_buffer(types.grad, {size}, 2);
  Buffer m = random_buffer(types.main, {size}, 3);
  std::vector<double> squares = numbers(size, 4);
  for (double& value : squares) value *= value;
  Buffer v(types.main, {size}, squares);
  StepState state = some_state(update);
  std::vector<double> w = main.values(), g = grad.values(), m1 = m.values(), v1 = v.values();
  const double lr = 0.01 * 2, decay = 0.1 * 0.5, t = static_cast<double>(update);
  for (std::size_t i = 0; i < w.size(); ++i) {
    double gradient = 0.5 * g[i] + (decoupled ? 0 : decay * w[i]);
    m1[i] = 0.9 * m1[i] + 0.1 * gradient;
    v1[i] = 0.95 * v1[i] + 0.05 * gradient * gradient;
    double m_hat = m1[i] / (1 - std::pow(0.9, t)), v_hat = v1[i] / (1 - std::pow(0.95, t));
    w[i] -= lr * (m_hat / (std::sqrt(v_hat) + 1e-6) + (decoupled ? decay * w[i] : 0));
  }
  double tolerance = 8 * epsilon_of(types.main);
  on_every_level([&](const Kernels& kernels, const Stream& stream) {
    Buffer main_out = main, m_out = m, v_out = v, values(types.values, {size});
    kernels.optim.adam(stream, {.main = main_out.view(),
                                .grad = grad.view(),
                                .m = m_out.view(),
                                .v = v_out.view(),
                                .values = values.view(),
                                .state = &state,
                                .lr_mult = 2,
                                .wd_mult = 0.5,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .epsilon = 1e-6,
                                .decoupled = decoupled});
    expect_near(main_out.values(), w, tolerance);
    expect_near(m_out.values(), m1, tolerance);
    expect_near(v_out.values(), v1, tolerance);
    expect_near(values.values(), Buffer(types.values, {size}, main_out.values()).values(), 0);
    return main_out.bits() + m_out.bits() + v_out.bits() + values.bits();
  });
}

TEST(Adam, MatchesTheFormula) {
  for (const Types& types : kTypes) {
    for (bool decoupled : {true, false}) {
      for (std::int64_t update : {1, 10}) check_adam(types, 777, decoupled, update);
    }
  }
  check_adam(kTypes[1], 0, true, 1);
  check_adam(kTypes[1], 20011, true, 3);
}

TEST(Adam, ValuesMayBeMainItself) {
  StepState state = some_state(1);
  Buffer start = random_buffer(Dtype::kF32, {500}, 1), grad = random_buffer(Dtype::kF32, {500}, 2);
  Buffer zeros(Dtype::kF32, {500}, std::vector<double>(500, 0));
  on_every_level([&](const Kernels& kernels, const Stream& stream) {
    std::vector<std::vector<double>> results;
    for (bool shared : {false, true}) {
      Buffer main = start, m = zeros, v = zeros, values(Dtype::kF32, {500});
      kernels.optim.adam(stream, {.main = main.view(),
                                  .grad = grad.view(),
                                  .m = m.view(),
                                  .v = v.view(),
                                  .values = shared ? main.view() : values.view(),
                                  .state = &state});
      results.push_back(main.values());
    }
    EXPECT_EQ(results[0], results[1]);
    return std::string();
  });
}

TEST(Sgd, MatchesTorch) {
  for (const Types& types : kTypes) {
    for (std::int64_t update : {1, 2}) {
      for (bool with_momentum : {true, false}) {
        constexpr std::int64_t kSize = 301;
        Buffer main = random_buffer(types.main, {kSize}, 1);
        Buffer grad = random_buffer(types.grad, {kSize}, 2);
        Buffer m =
            update == 1 ? Buffer(types.main, {kSize}) : random_buffer(types.main, {kSize}, 3);
        StepState state = some_state(update);
        std::vector<double> w = main.values(), g = grad.values(), m1 = m.values();
        for (std::size_t i = 0; i < w.size(); ++i) {
          double gradient = 0.5 * g[i] + 0.1 * w[i];
          m1[i] = update == 1 || !with_momentum ? gradient : 0.8 * m1[i] + gradient;
          w[i] -= 0.01 * m1[i];
        }
        on_every_level([&](const Kernels& kernels, const Stream& stream) {
          Buffer main_out = main, m_out = m, values(types.values, {kSize});
          kernels.optim.sgd(stream, {.main = main_out.view(),
                                     .grad = grad.view(),
                                     .m = with_momentum ? m_out.view() : View{},
                                     .values = values.view(),
                                     .state = &state,
                                     .momentum = 0.8});
          expect_near(main_out.values(), w, 4 * epsilon_of(types.main));
          if (with_momentum) expect_near(m_out.values(), m1, 4 * epsilon_of(types.main));
          expect_near(values.values(), Buffer(types.values, {kSize}, main_out.values()).values(),
                      0);
          return main_out.bits() + values.bits();
        });
      }
    }
  }
}

TEST(Optim, SkipLeavesEverythingAsItIs) {
  StepState state = some_state(3);
  state.skip = 1;
  on_every_level([&](const Kernels& kernels, const Stream& stream) {
    Buffer main = random_buffer(Dtype::kF32, {99}, 1), grad = random_buffer(Dtype::kF32, {99}, 2);
    Buffer m = random_buffer(Dtype::kF32, {99}, 3), v = random_buffer(Dtype::kF32, {99}, 4);
    Buffer values = random_buffer(Dtype::kBf16, {99}, 5);
    std::string before = main.bits() + m.bits() + v.bits() + values.bits();
    kernels.optim.adam(stream, {.main = main.view(),
                                .grad = grad.view(),
                                .m = m.view(),
                                .v = v.view(),
                                .values = values.view(),
                                .state = &state});
    kernels.optim.sgd(stream, {.main = main.view(),
                               .grad = grad.view(),
                               .m = m.view(),
                               .values = values.view(),
                               .state = &state});
    EXPECT_TRUE(before == main.bits() + m.bits() + v.bits() + values.bits());
    return before;
  });
}

TEST(SumSquares, AddsInF64) {
  for (Dtype dtype : kFloats) {
    for (std::int64_t size : {0, 1, 31, 1000, 200003}) {
      Buffer x = random_buffer(dtype, {size}, 1, 100);
      double want = 0.5;
      for (double value : x.values()) want += value * value;
      on_every_level([&](const Kernels& kernels, const Stream& stream) {
        double sum = 0.5;
        kernels.optim.sum_squares(stream, x.view(), &sum);
        EXPECT_NEAR(sum, want, 1e-13 * want);
        return std::string(reinterpret_cast<const char*>(&sum), sizeof sum);
      });
      if (size < 31) continue;
      for (double bad :
           {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
        Buffer y = x;
        y.set(static_cast<std::size_t>(size) - 3, bad);
        on_every_level([&](const Kernels& kernels, const Stream& stream) {
          double sum = 0;
          kernels.optim.sum_squares(stream, y.view(), &sum);
          EXPECT_FALSE(std::isfinite(sum));
          return std::string();
        });
      }
    }
  }
}

TEST(Normal, IsBoxMullerOfTheGeneratorsBlocks) {
  constexpr std::int64_t kFirst = 4611686018427387905, kSize = 1001;  // odd and beyond 32 bits
  std::vector<double> want;
  for (std::int64_t i = kFirst; i < kFirst + kSize; ++i) {
    auto block = static_cast<std::uint64_t>(i / 4);
    PhiloxCounter words = philox(
        {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0}, 99);
    auto pair = static_cast<std::size_t>(i % 4 / 2 * 2);
    double radius = std::sqrt(-2 * std::log(static_cast<double>(uniform_of(words[pair]))));
    double angle = 2 * M_PI * static_cast<double>(uniform_of(words[pair + 1]));
    double z = radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
    want.push_back(static_cast<double>(static_cast<float>(0.5 + 0.02 * z)));
  }
  for (Dtype dtype : kFloats) {
    std::vector<double> rounded = Buffer(dtype, {kSize}, want).values();
    std::string first;
    on_every_level([&](const Kernels& kernels, const Stream& stream) {
      Buffer x(dtype, {kSize});
      kernels.optim.normal(stream,
                           {.x = x.view(), .key = 99, .first = kFirst, .mean = 0.5, .std = 0.02});
      expect_near(x.values(), rounded, 0);
      if (first.empty()) first = x.bits();
      EXPECT_TRUE(first == x.bits()) << "levels differ";
      return x.bits();
    });
  }
}

TEST(Normal, AnyCutGivesTheSameSequence) {
  ThreadPool pool(2);
  Stream stream{.pool = &pool};
  Buffer whole(Dtype::kF32, {100000});
  cpu_kernels().optim.normal(stream, {.x = whole.view(), .key = 5});
  double sum = 0, squares = 0;
  for (double z : whole.values()) {
    sum += z;
    squares += z * z;
  }
  EXPECT_NEAR(sum / 100000, 0, 0.015);
  EXPECT_NEAR(squares / 100000, 1, 0.02);
  Buffer part(Dtype::kF32, {777});
  cpu_kernels().optim.normal(stream, {.x = part.view(), .key = 5, .first = 50001});
  EXPECT_TRUE(whole.bits().substr(50001 * 4, 777 * 4) == part.bits());
}
}  // namespace
}  // namespace bev
