#include "kernels/optim.h"

#include <gtest/gtest.h>

#include "tensor/moment8.h"
#include "tests/backend_cpu/kernel_fixture.h"

namespace bev {
namespace {
using namespace kernel_test;

StepState some_state(std::int64_t update) {
  StepState state;
  state.iteration = state.update = update;
  state.lr = 0.01;
  state.weight_decay = 0.1;
  state.loss_factor = 1;
  state.grad_multiplier = 0.5;
  return state;
}

struct Types {
  Dtype main, grad, values;
};
const std::vector<Types> kTypes = {
    {Dtype::kF32, Dtype::kF32, Dtype::kF32},  {Dtype::kF32, Dtype::kF32, Dtype::kBf16},
    {Dtype::kF32, Dtype::kF32, Dtype::kF16},  {Dtype::kF32, Dtype::kF64, Dtype::kBf16},
    {Dtype::kF64, Dtype::kF64, Dtype::kF64},  {Dtype::kF64, Dtype::kF32, Dtype::kF64},
    {Dtype::kF32, Dtype::kBf16, Dtype::kBf16}};

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
    const AdamRange range{.main = main_out.view(),
                          .grad = grad.view(),
                          .m = m_out.view(),
                          .v = v_out.view(),
                          .values = values.view(),
                          .lr_mult = 2,
                          .wd_mult = 0.5};
    kernels.optim.adam(
        stream,
        {.state = &state, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-6, .decoupled = decoupled},
        {&range, 1});
    expect_near(main_out.values(), w, tolerance);
    expect_near(m_out.values(), m1, tolerance);
    expect_near(v_out.values(), v1, tolerance);
    expect_near(values.values(), Buffer(types.values, {size}, main_out.values()).values(), 0);
    return main_out.bits() + m_out.bits() + v_out.bits() + values.bits();
  });
}

// The learning rate of a group, and moments that began after two updates.
TEST(Adam, GroupsHaveTheirLearningRateAndCountTheirUpdates) {
  const std::int64_t size = 50;
  Buffer main = random_buffer(Dtype::kF32, {size}, 1), grad = random_buffer(Dtype::kF32, {size}, 2);
  Buffer zeros(Dtype::kF32, {size}, std::vector<double>(size));
  StepState plain = some_state(1), grouped = some_state(3);
  grouped.lr.values[5] = plain.lr.values[0];
  grouped.lr.values[0] = 7;
  on_every_level([&](const Kernels& kernels, const Stream& stream) {
    auto updated = [&](const StepState& state, int lr_index, std::int64_t updates_before) {
      Buffer out = main, m = zeros, v = zeros;
      const AdamRange range{.main = out.view(),
                            .grad = grad.view(),
                            .m = m.view(),
                            .v = v.view(),
                            .values = out.view(),
                            .lr_index = lr_index,
                            .updates_before = updates_before};
      kernels.optim.adam(stream, {.state = &state}, {&range, 1});
      return out.bits();
    };
    EXPECT_EQ(updated(grouped, 5, 2), updated(plain, 0, 0));
    EXPECT_NE(updated(grouped, 5, 0), updated(plain, 0, 0));
    return updated(grouped, 5, 2);
  });
}

TEST(Sgd, GroupsHaveTheirLearningRate) {
  const std::int64_t size = 50;
  Buffer main = random_buffer(Dtype::kF32, {size}, 1), grad = random_buffer(Dtype::kF32, {size}, 2);
  Buffer zeros(Dtype::kF32, {size}, std::vector<double>(size));
  StepState plain = some_state(2), grouped = plain;
  grouped.lr.values[3] = plain.lr.values[0];
  grouped.lr.values[0] = 7;
  on_every_level([&](const Kernels& kernels, const Stream& stream) {
    auto updated = [&](const StepState& state, int lr_index) {
      Buffer out = main, m = zeros;
      kernels.optim.sgd(stream, {.main = out.view(),
                                 .grad = grad.view(),
                                 .m = m.view(),
                                 .values = out.view(),
                                 .state = &state,
                                 .lr_index = lr_index});
      return out.bits();
    };
    EXPECT_EQ(updated(grouped, 3), updated(plain, 0));
    return updated(grouped, 3);
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
      const AdamRange range{.main = main.view(),
                            .grad = grad.view(),
                            .m = m.view(),
                            .v = v.view(),
                            .values = shared ? main.view() : values.view()};
      kernels.optim.adam(stream, {.state = &state}, {&range, 1});
      results.push_back(main.values());
    }
    EXPECT_EQ(results[0], results[1]);
    return std::string();
  });
}

// Dtypes of Adam's state.
struct Kept {
  Dtype main, grad, m, v;
};
const std::vector<Kept> kKept = {{Dtype::kBf16, Dtype::kBf16, Dtype::kBf16, Dtype::kBf16},
                                 {Dtype::kBf16, Dtype::kF32, Dtype::kF32, Dtype::kF32},
                                 {Dtype::kF32, Dtype::kF32, Dtype::kBf16, Dtype::kF32},
                                 {Dtype::kF32, Dtype::kBf16, Dtype::kF32, Dtype::kBf16}};

struct AdamBuffers {
  Buffer main, grad, m, v;
};
AdamBuffers some_buffers(const Kept& kept, std::int64_t size) {
  std::vector<double> squares = numbers(size, 4);
  for (double& value : squares) value *= value;
  return {random_buffer(kept.main, {size}, 1), random_buffer(kept.grad, {size}, 2),
          random_buffer(kept.m, {size}, 3), Buffer(kept.v, {size}, squares)};
}
AdamRange range_of(AdamBuffers& buffers) {
  return {.main = buffers.main.view(),
          .grad = buffers.grad.view(),
          .m = buffers.m.view(),
          .v = buffers.v.view(),
          .values = buffers.main.view()};
}
void adam_step(const Kernels& kernels, const Stream& stream, AdamBuffers& buffers,
               const StepState& state) {
  const AdamRange range = range_of(buffers);
  kernels.optim.adam(stream, {.state = &state}, {&range, 1});
}

// `got` is one of the two bf16 neighbours of each `exact` value, and equal to it if it is
// representable.
void expect_neighbours(const std::vector<double>& got, const std::vector<double>& exact) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double unit = std::ldexp(1.0, std::ilogb(exact[i]) - 7);
    EXPECT_LT(std::fabs(got[i] - exact[i]), unit * 1.0001) << i;
  }
}

TEST(Adam, Bf16StateIsTheF32ResultRounded) {
  for (const Kept& kept : kKept) {
    constexpr std::int64_t kSize = 1000;
    StepState state = some_state(5);
    state.random_key = 77;
    AdamBuffers start = some_buffers(kept, kSize);
    on_every_level([&](const Kernels& kernels, const Stream& stream) {
      // The same values, all in f32.
      AdamBuffers wide{Buffer(Dtype::kF32, {kSize}, start.main.values()),
                       Buffer(Dtype::kF32, {kSize}, start.grad.values()),
                       Buffer(Dtype::kF32, {kSize}, start.m.values()),
                       Buffer(Dtype::kF32, {kSize}, start.v.values())};
      adam_step(kernels, stream, wide, state);
      AdamBuffers kept_buffers = start;
      adam_step(kernels, stream, kept_buffers, state);
      expect_near(kept_buffers.m.values(), Buffer(kept.m, {kSize}, wide.m.values()).values(), 0);
      if (kept.main == Dtype::kF32) {
        expect_near(kept_buffers.main.values(), wide.main.values(), 0);
      } else {
        expect_neighbours(kept_buffers.main.values(), wide.main.values());
      }
      if (kept.v == Dtype::kF32) {
        expect_near(kept_buffers.v.values(), wide.v.values(), 0);
      } else {
        expect_neighbours(kept_buffers.v.values(), wide.v.values());
      }
      return kept_buffers.main.bits() + kept_buffers.m.bits() + kept_buffers.v.bits();
    });
  }
}

// Each value is one of the two neighbours of the f32 result, and the mean is preserved.
TEST(Adam, MomentsIn8BitsAreTheF32ResultRounded) {
  constexpr std::int64_t kSize = 40001;
  StepState state = some_state(5);
  state.random_key = 77;
  const AdamBuffers start =
      some_buffers({Dtype::kF32, Dtype::kBf16, Dtype::kF32, Dtype::kF32}, kSize);
  const auto blocks = static_cast<std::size_t>(moment_blocks(kSize));
  on_every_level([&](const Kernels& kernels, const Stream& stream) {
    std::vector<std::uint8_t> codes[2], scales[2];
    std::vector<float> numbers[2];
    AdamBuffers narrow = start, wide = start;
    for (int moment : {0, 1}) {
      const MomentFormat format = moment == 0 ? MomentFormat::kSigned : MomentFormat::kPositive;
      numbers[moment].resize(kSize);
      codes[moment].resize(kSize);
      scales[moment].resize(blocks);
      Buffer& from = moment == 0 ? wide.m : wide.v;
      pack_moments(format, from.view().as<float>(), nullptr, kSize, codes[moment].data(),
                   scales[moment].data());
      // The reference starts from the values that these codes represent.
      unpack_moments(format, codes[moment].data(), scales[moment].data(), kSize,
                     from.view().as<float>());
    }
    AdamRange range = range_of(narrow);
    auto bytes = [](std::vector<std::uint8_t>& of) {
      return View{of.data(), Dtype::kU8, {static_cast<std::int64_t>(of.size())}};
    };
    range.m = bytes(codes[0]);
    range.v = bytes(codes[1]);
    range.m_scales = bytes(scales[0]);
    range.v_scales = bytes(scales[1]);
    kernels.optim.adam(stream, {.state = &state}, {&range, 1});
    adam_step(kernels, stream, wide, state);
    expect_near(narrow.main.values(), wide.main.values(), 1e-6);
    for (int moment : {0, 1}) {
      const MomentFormat format = moment == 0 ? MomentFormat::kSigned : MomentFormat::kPositive;
      unpack_moments(format, codes[moment].data(), scales[moment].data(), kSize,
                     numbers[moment].data());
      const std::vector<double> exact = moment == 0 ? wide.m.values() : wide.v.values();
      double sum = 0, exact_sum = 0;
      for (std::size_t i = 0; i < exact.size(); ++i) {
        const double unit = std::ldexp(1.0, std::ilogb(exact[i]) - 3);
        EXPECT_LE(std::fabs(numbers[moment][i] - exact[i]), std::max(unit, 0x1p-17)) << i;
        sum += std::fabs(numbers[moment][i]);
        exact_sum += std::fabs(exact[i]);
      }
      EXPECT_NEAR(sum / exact_sum, 1, 1e-3);
    }
    return std::string(codes[0].begin(), codes[0].end()) +
           std::string(codes[1].begin(), codes[1].end());
  });
}

// Stochastic rounding: a range split anywhere draws the same noise; other names and steps draw
// other noise.
TEST(Adam, NoiseFollowsTheElementAndNotTheRange) {
  constexpr std::int64_t kSize = 1003, kCut = 541;
  AdamBuffers start = some_buffers(kKept[0], kSize);
  StepState state = some_state(2);
  state.random_key = 5;
  on_every_level([&](const Kernels& kernels, const Stream& stream) {
    AdamBuffers whole = start, parts = start, other_name = start, other_step = start;
    auto named = [](AdamBuffers& buffers, std::uint64_t name) {
      AdamRange range = range_of(buffers);
      range.random_stream = name;
      range.first = 3;
      return range;
    };
    AdamRange range = named(whole, 9);
    kernels.optim.adam(stream, {.state = &state}, {&range, 1});
    std::vector<AdamRange> cut;
    for (bool upper : {false, true}) {
      AdamRange part = named(parts, 9);
      const std::int64_t begin = upper ? kCut : 0, end = upper ? kSize : kCut;
      for (View* view : {&part.main, &part.grad, &part.m, &part.v, &part.values}) {
        *view = view->rows(begin, end);
      }
      part.first += begin;
      cut.push_back(part);
    }
    kernels.optim.adam(stream, {.state = &state}, cut);
    EXPECT_TRUE(whole.main.bits() == parts.main.bits());
    EXPECT_TRUE(whole.v.bits() == parts.v.bits());
    range = named(other_name, 10);
    kernels.optim.adam(stream, {.state = &state}, {&range, 1});
    EXPECT_FALSE(whole.main.bits() == other_name.main.bits());
    StepState next = state;
    next.random_key = 6;
    range = named(other_step, 9);
    kernels.optim.adam(stream, {.state = &next}, {&range, 1});
    EXPECT_FALSE(whole.main.bits() == other_step.main.bits());
    return whole.main.bits();
  });
}

// Updates of a hundredth of an ulp: with rounding to nearest nothing would change.
TEST(Adam, SmallUpdatesAreNotLostInBf16) {
  constexpr std::int64_t kSize = 4000, kSteps = 100;
  ThreadPool pool(2);
  Stream stream{.pool = &pool};
  auto constant = [](Dtype dtype, double value) {
    return Buffer(dtype, {kSize}, std::vector<double>(kSize, value));
  };
  AdamBuffers buffers{constant(Dtype::kBf16, 1.5), constant(Dtype::kF32, 1),
                      constant(Dtype::kF32, 0), constant(Dtype::kBf16, 0)};
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    StepState state;
    state.random_key = static_cast<std::uint64_t>(step);
    state.update = step;
    state.lr = 1e-4;
    adam_step(cpu_kernels(), stream, buffers, state);
  }
  auto mean = [](const std::vector<double>& values) {
    double sum = 0;
    for (double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  };
  EXPECT_NEAR(mean(buffers.main.values()), 1.5 - 1e-4 * kSteps, 3e-4);
  const double second = 1 - std::pow(0.999, kSteps);
  EXPECT_NEAR(mean(buffers.v.values()), second, 0.01 * second);
}

TEST(Clip, DecidesFromNormAndLoss) {
  struct Row {
    double square_sum, loss, max_norm, loss_scale;
    bool skips;
    double multiplier;
  };
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const std::vector<Row> rows = {{16, 2, 1, 1, false, 1 / (4 + 1e-6)},
                                 {16, 2, 8, 1, false, 1},
                                 {16, 2, 0, 1, false, 1},
                                 {16, 2, 1, 8, false, 1.0 / 8},
                                 {1600, 2, 1, 8, false, 1 / (5 + 1e-6) / 8},
                                 {0, 0, 1, 1, false, 1},
                                 {nan, 2, 1, 1, true, 0.5},
                                 {infinity, 2, 0, 1, true, 0.5},
                                 {16, nan, 1, 1, true, 0.5},
                                 {16, -infinity, 1, 1, true, 0.5}};
  for (const Row& row : rows) {
    for (std::int32_t failed : {0, 1}) {
      on_every_level([&](const Kernels& kernels, const Stream& stream) {
        const bool skips = row.skips || failed;
        StepState state = some_state(3);
        state.loss_scale = row.loss_scale;
        state.failed = failed;
        state.skip = 1 - failed;  // of the previous step
        kernels.optim.clip(stream, {.square_sum = &row.square_sum,
                                    .loss = &row.loss,
                                    .state = &state,
                                    .max_norm = row.max_norm});
        EXPECT_EQ(state.skip, skips ? 1 : 0);
        EXPECT_EQ(state.failed, skips ? 1 : 0);
        EXPECT_EQ(state.update, skips ? 3 : 4);
        EXPECT_DOUBLE_EQ(state.grad_multiplier, skips ? 0.5 : row.multiplier);
        return std::string();
      });
    }
  }
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
    const AdamRange range{.main = main.view(),
                          .grad = grad.view(),
                          .m = m.view(),
                          .v = v.view(),
                          .values = values.view()};
    kernels.optim.adam(stream, {.state = &state}, {&range, 1});
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
        const std::vector<View> all = {x.view().rows(0, size / 3), x.view().rows(size / 3, size)};
        kernels.optim.sum_squares(stream, all, &sum);
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
          const View bad_one = y.view();
          kernels.optim.sum_squares(stream, {&bad_one, 1}, &sum);
          EXPECT_FALSE(std::isfinite(sum));
          return std::string();
        });
      }
    }
  }
}

TEST(CountZeros, AddsBothZerosAndNothingElse) {
  for (Dtype dtype : kFloats) {
    for (std::int64_t size : {0, 1, 31, 1000, 200003}) {
      Buffer x = random_buffer(dtype, {size}, 1);
      double want = 0.5;
      for (std::int64_t i = 0; i < size; i += 7) {
        x.set(static_cast<std::size_t>(i), i % 2 == 0 ? 0.0 : -0.0);
      }
      if (size > 31) x.set(30, std::numeric_limits<double>::quiet_NaN());
      for (double value : x.values()) want += value == 0 ? 1 : 0;
      on_every_level([&](const Kernels& kernels, const Stream& stream) {
        double count = 0.5;
        const std::vector<View> all = {x.view().rows(0, size / 3), x.view().rows(size / 3, size)};
        kernels.optim.count_zeros(stream, all, &count);
        EXPECT_EQ(count, want);
        return std::string();
      });
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
// Parts of a weight that begin and end within a row.
TEST(QkClip, ScalesRowsOfAnyRange) {
  constexpr std::int64_t kRows = 6, kColumns = 5;
  const std::vector<std::int32_t> groups = {0, 0, 1, 1, 0, -1};
  const std::vector<double> powers = {0.5, 0.5, 0.5, 1, 0.25, 0};
  const std::vector<double> etas = {4.0 / 16, 1};  // the largest of two heads each
  for (const Types& types : kTypes) {
    const Dtype wide = types.main;
    Buffer logits(wide, {4}, {3, 16, 2, 4});
    Buffer whole = random_buffer(types.main, {kRows * kColumns}, 1);
    for (auto [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 30}, {3, 20}, {12, 2}}) {
      const std::vector<double> all = whole.values();
      std::vector<double> old(all.begin() + first, all.begin() + first + count), want = old;
      for (std::size_t i = 0; i < want.size(); ++i) {
        const std::size_t row = (static_cast<std::size_t>(first) + i) / kColumns;
        if (groups[row] >= 0) {
          want[i] *= std::pow(etas[static_cast<std::size_t>(groups[row])], powers[row]);
        }
      }
      for (bool skipped : {false, true}) {
        StepState state = some_state(1);
        state.skip = skipped ? 1 : 0;
        on_every_level([&](const Kernels& kernels, const Stream& stream) {
          Buffer main(types.main, {count}, old), values(types.values, {count}, old);
          kernels.optim.qk_clip(stream, {.main = main.view(),
                                         .values = values.view(),
                                         .first = first,
                                         .columns = kColumns,
                                         .groups = groups.data(),
                                         .powers = powers.data(),
                                         .max_logits = logits.view(),
                                         .group_heads = 2,
                                         .threshold = 4,
                                         .state = &state});
          expect_near(main.values(), skipped ? old : want, 2 * epsilon_of(types.main));
          expect_near(values.values(), skipped ? old : want, 2 * epsilon_of(types.values));
          EXPECT_TRUE(main.guards_intact() && values.guards_intact());
          return main.bits() + values.bits();
        });
      }
    }
  }
}

}  // namespace
}  // namespace bev
