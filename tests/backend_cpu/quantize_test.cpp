#include "kernels/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "base/divide.h"
#include "kernels/activation.h"
#include "kernels/norm.h"
#include "tests/backend_cpu/kernel_fixture.h"

namespace bev::kernel_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Fp8, RoundsAsTorchDoes) {
  std::ifstream file(BEV_SOURCE_DIR "/tests/golden/fp8/rounding.txt");
  std::uint32_t bits = 0, e4m3 = 0, e5m2 = 0;
  int count = 0;
  while (file >> std::hex >> bits >> e4m3 >> e5m2) {
    auto value = std::bit_cast<float>(bits);
    ASSERT_EQ(to_fp8<Fp8Format::kE4m3>(value), e4m3) << value;
    ASSERT_EQ(to_fp8<Fp8Format::kE5m2>(value), e5m2) << value;
    ++count;
  }
  EXPECT_GT(count, 1000);
}

TEST(Fp8, NumbersComeBackAndTheRestIsKeptOrCut) {
  for (int bits = 0; bits < 256; ++bits) {
    auto byte = static_cast<std::uint8_t>(bits);
    float small = from_fp8(Fp8Format::kE4m3, byte), wide = from_fp8(Fp8Format::kE5m2, byte);
    EXPECT_EQ(std::isnan(small), (bits & 0x7f) == 0x7f) << bits;
    EXPECT_TRUE(std::isnan(small) || to_fp8<Fp8Format::kE4m3>(small) == byte) << bits;
    EXPECT_EQ(std::isnan(wide), (bits & 0x7f) > 0x7c) << bits;
    EXPECT_TRUE(!std::isfinite(wide) || to_fp8<Fp8Format::kE5m2>(wide) == byte) << bits;
  }
  EXPECT_EQ(from_fp8(Fp8Format::kE5m2, to_fp8<Fp8Format::kE5m2>(kInfinity)), 57344);
  EXPECT_EQ(from_fp8(Fp8Format::kE4m3, to_fp8<Fp8Format::kE4m3>(-kInfinity)), -448);
  EXPECT_EQ(to_fp8<Fp8Format::kE4m3>(-kNan), kFp8Nan);
}

// Memory of a quantised matrix. Bytes and scales that must be written are NaN before.
struct Forms {
  Forms(ScaleBlock block, std::int64_t rows, std::int64_t columns)
      : padded(padded_rows(block, rows)),
        row_shape{rows, columns},
        column_shape{columns, padded},
        row_bytes(static_cast<std::size_t>(rows * columns), 0xa5),
        column_bytes(static_cast<std::size_t>(columns * padded), 0xa5),
        row_scales(Dtype::kF32, scale_shape(block, rows, columns)),
        column_scales(Dtype::kF32, scale_shape(block, columns, padded)) {}
  void attach(QuantizeArgs& args) {
    args.rows = {row_bytes.data(), Dtype::kU8, row_shape};
    args.columns = {column_bytes.data(), Dtype::kU8, column_shape};
    args.row_scales = row_scales.view();
    args.column_scales = column_scales.view();
  }
  std::int64_t padded;
  Shape row_shape, column_shape;
  std::vector<std::uint8_t> row_bytes, column_bytes;
  Buffer row_scales, column_scales;
};

float expected_scale(float amax, Fp8Format format, int margin) {
  return amax == 0 ? 1 : std::ldexp(largest_of(format) / amax, -margin);
}

std::uint8_t rounded(Fp8Format format, float value) {
  return format == Fp8Format::kE4m3 ? to_fp8<Fp8Format::kE4m3>(value)
                                    : to_fp8<Fp8Format::kE5m2>(value);
}

// The amax of the block that each element of [rows, columns] belongs to; runs go along the columns.
// Rows beyond the matrix are zero.
std::vector<float> block_sizes(const std::vector<double>& x, const Shape& shape, ScaleBlock block,
                               bool transposed, float amax) {
  std::int64_t rows = shape[0], columns = shape[1];
  auto block_of = [&](std::int64_t i, std::int64_t j) {
    if (block == ScaleBlock::kTensor) return std::pair<std::int64_t, std::int64_t>{0, 0};
    if (block == ScaleBlock::kSquare) return std::pair{i / 128, j / 128};
    return transposed ? std::pair{i / 128, j} : std::pair{i, j / 128};
  };
  std::map<std::pair<std::int64_t, std::int64_t>, float> largest;
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    float& most = largest[block_of(i / columns, i % columns)];
    most = std::max(most, std::fabs(static_cast<float>(x[static_cast<std::size_t>(i)])));
  }
  if (block == ScaleBlock::kTensor) largest[{0, 0}] = amax;
  std::vector<float> out;
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    out.push_back(largest[block_of(i / columns, i % columns)]);
  }
  return out;
}

// Checks each element against the definition.
void check_forms(const std::vector<double>& x, const QuantizeArgs& args, Forms& forms, float amax) {
  std::int64_t rows = args.x.shape[0], columns = args.x.shape[1];
  std::vector<double> row_scales = forms.row_scales.values(),
                      column_scales = forms.column_scales.values();
  auto up = [](std::int64_t n) { return round_up(n, 4); };
  auto place = [&](std::int64_t line, std::int64_t at, std::int64_t lines, std::int64_t width) {
    return args.block == ScaleBlock::kTensor ? 0
           : args.block == ScaleBlock::kRun  ? at / 128 * up(lines) + line
                                             : line / 128 * up(ceil_div(width, 128)) + at / 128;
  };
  std::vector<float> in_rows = block_sizes(x, args.x.shape, args.block, false, amax),
                     in_columns = block_sizes(x, args.x.shape, args.block, true, amax);
  for (std::int64_t i = 0; i < forms.padded; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      std::uint8_t turned = forms.column_bytes[static_cast<std::size_t>(j * forms.padded + i)];
      if (i >= rows) {
        ASSERT_EQ(turned, 0) << i << ", " << j;
        continue;
      }
      auto element = static_cast<std::size_t>(i * columns + j);
      auto value = static_cast<float>(x[element]);
      float scale = expected_scale(in_rows[element], args.format, args.margin);
      ASSERT_EQ(forms.row_bytes[element], rounded(args.format, value * scale)) << i << ", " << j;
      ASSERT_EQ(
          static_cast<float>(row_scales[static_cast<std::size_t>(place(i, j, rows, columns))]),
          1 / scale);
      scale = expected_scale(in_columns[element], args.format, args.margin);
      ASSERT_EQ(turned, rounded(args.format, value * scale)) << i << ", " << j;
      ASSERT_EQ(static_cast<float>(
                    column_scales[static_cast<std::size_t>(place(j, i, columns, forms.padded))]),
                1 / scale);
    }
  }
}

TEST(Quantize, GivesBothFormsOfEveryKindOfScale) {
  for (ScaleBlock block : {ScaleBlock::kTensor, ScaleBlock::kRun, ScaleBlock::kSquare}) {
    for (Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
      for (std::int64_t rows : {1, 5, 128, 131}) {
        std::int64_t columns = block == ScaleBlock::kTensor ? 144 : 256;
        on_every_level([&](const Kernels& kernels, const Stream& stream) {
          Buffer x = random_buffer(Dtype::kBf16, {rows, columns}, 3, 0.07);
          Forms forms(block, rows, columns);
          float amax = 0, seen = 0.001f;
          kernels.quantize.amax(stream, x.view(), &amax);
          QuantizeArgs args;
          args.x = x.view();
          args.format = format;
          args.block = block;
          args.amax = &amax;
          args.margin = 2;
          args.seen = &seen;
          forms.attach(args);
          kernels.quantize.quantize(stream, args);
          check_forms(x.values(), args, forms, amax);
          EXPECT_EQ(seen, amax);
          if (block == ScaleBlock::kTensor) {
            Forms turned(block, rows, columns);
            kernels.quantize.transpose(
                stream, args.rows, {turned.column_bytes.data(), Dtype::kU8, turned.column_shape});
            EXPECT_TRUE(turned.column_bytes == forms.column_bytes);
          }
          return std::string(forms.row_bytes.begin(), forms.row_bytes.end()) +
                 std::string(forms.column_bytes.begin(), forms.column_bytes.end());
        });
      }
    }
  }
}

TEST(Fp4, RoundsToTheNearestOfItsNumbers) {
  const float numbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(round_to_fp4(numbers[i]), numbers[i]);
    EXPECT_EQ(round_to_fp4(-numbers[i]), -numbers[i]);
    if (i == 7) break;
    float middle = (numbers[i] + numbers[i + 1]) / 2;
    EXPECT_EQ(round_to_fp4(middle), numbers[i + i % 2]) << middle;
    EXPECT_EQ(round_to_fp4(std::nextafter(middle, 0.0f)), numbers[i]);
    EXPECT_EQ(round_to_fp4(std::nextafter(middle, 9.0f)), numbers[i + 1]);
  }
  EXPECT_EQ(round_to_fp4(1e30f), 6);
  EXPECT_EQ(round_to_fp4(-kInfinity), -6);
  EXPECT_TRUE(std::isnan(round_to_fp4(kNan)));
}

// A dequantised run of either format consists of multiples of its scale, close to its values.
TEST(Fp4, RunsKeepTheirScales) {
  const Kernels& kernels = cpu_kernels();
  ThreadPool pool(2);
  Stream stream{.pool = &pool};
  for (ScaleBlock block : {ScaleBlock::kNvfp4, ScaleBlock::kMxfp4}) {
    std::int64_t run = emulated_run(block), rows = 37, columns = 96;
    std::int64_t padded = padded_rows(block, rows);
    Buffer x = random_buffer(Dtype::kF32, {rows, columns}, 9, 3);
    Buffer by_rows(Dtype::kF32, {rows, columns}), by_columns(Dtype::kF32, {columns, padded});
    float amax = 0;
    kernels.quantize.amax(stream, x.view(), &amax);
    QuantizeArgs args;
    args.x = x.view();
    args.block = block;
    args.amax = &amax;
    args.rows = by_rows.view();
    args.columns = by_columns.view();
    kernels.quantize.quantize(stream, args);
    std::vector<double> from = x.values(), to = by_rows.values(), turned = by_columns.values();
    auto check_run = [&](const auto& number, const auto& rounded) {
      double most = 0;
      for (std::int64_t k = 0; k < run; ++k) most = std::max(most, std::fabs(number(k)));
      double scale = std::exp2(std::floor(std::log2(most)) - 2);
      if (block == ScaleBlock::kNvfp4) {
        float of_tensor = amax / (6 * 448.0f);
        auto part = to_fp8<Fp8Format::kE4m3>(static_cast<float>(most) / 6 / of_tensor);
        scale = from_fp8(Fp8Format::kE4m3, part) * of_tensor;
      }
      for (std::int64_t k = 0; k < run; ++k) {
        auto ratio = static_cast<float>(number(k)) / static_cast<float>(scale);
        EXPECT_EQ(rounded(k), round_to_fp4(ratio) * static_cast<float>(scale));
      }
    };
    for (std::int64_t i = 0; i < rows * columns; i += run) {
      check_run([&](std::int64_t k) { return from[static_cast<std::size_t>(i + k)]; },
                [&](std::int64_t k) { return to[static_cast<std::size_t>(i + k)]; });
    }
    for (std::int64_t column = 0; column < columns; ++column) {
      for (std::int64_t row = 0; row + run <= rows; row += run) {
        check_run(
            [&](std::int64_t k) {
              return from[static_cast<std::size_t>((row + k) * columns + column)];
            },
            [&](std::int64_t k) {
              return turned[static_cast<std::size_t>(column * padded + row + k)];
            });
      }
      for (std::int64_t row = rows; row < padded; ++row) {
        EXPECT_EQ(turned[static_cast<std::size_t>(column * padded + row)], 0);
      }
    }
  }
}

// Quantises what `write(view)` writes, and the same fused with its producer (`maker`); compares
// both.
template <class Write>
void expect_made(ScaleBlock block, const Shape& shape, const QuantizeMaker& maker,
                 const Write& write) {
  const Kernels& kernels = cpu_kernels();
  ThreadPool pool(2);
  Stream stream{.pool = &pool};
  Buffer x(Dtype::kBf16, shape);
  write(stream, x.view());
  float amax = 0, seen = 0;
  kernels.quantize.amax(stream, x.view(), &amax);
  QuantizeArgs args;
  args.x = x.view();
  args.block = block;
  args.amax = &amax;
  args.seen = &seen;
  Forms written(block, shape[0], shape[1]), made(block, shape[0], shape[1]);
  written.attach(args);
  kernels.quantize.quantize(stream, args);
  seen = 0;
  args.x.data = nullptr;
  args.maker = maker;
  made.attach(args);
  kernels.quantize.quantize(stream, args);
  EXPECT_EQ(seen, amax);
  EXPECT_GT(seen, 0);
  EXPECT_TRUE(made.row_bytes == written.row_bytes);
  EXPECT_TRUE(made.column_bytes == written.column_bytes);
}

TEST(Quantize, WhatIsMadeOnTheWayIsWhatWouldHaveBeenWritten) {
  const Kernels& kernels = cpu_kernels();
  for (ScaleBlock block : {ScaleBlock::kTensor, ScaleBlock::kRun}) {
    Shape shape{131, block == ScaleBlock::kTensor ? 144 : 256}, wide{131, 2 * shape[1]};
    Buffer x = random_buffer(Dtype::kBf16, shape, 1),
           weight = random_buffer(Dtype::kBf16, {shape[1]}, 2);
    Buffer both = random_buffer(Dtype::kBf16, wide, 3), rstd(Dtype::kF32, {shape[0]});
    NormForwardArgs norm;
    norm.x = x.view();
    norm.weight = weight.view();
    norm.rstd = rstd.view();
    expect_made(block, shape, {&norm}, [&](const Stream& stream, const View& y) {
      NormForwardArgs args = norm;
      args.y = y;
      kernels.norm.forward(stream, args);
    });
    ActivationForwardArgs forward{both.view(), {}, Activation::kSilu, true, {2, 1}};
    expect_made(block, shape, {nullptr, &forward}, [&](const Stream& stream, const View& y) {
      ActivationForwardArgs args = forward;
      args.y = y;
      kernels.activation.forward(stream, args);
    });
    ActivationBackwardArgs gradient{x.view(), both.view(), {}, Activation::kGelu, true, {}};
    expect_made(block, wide, {nullptr, nullptr, &gradient},
                [&](const Stream& stream, const View& dx) {
                  ActivationBackwardArgs args = gradient;
                  args.dx = dx;
                  kernels.activation.backward(stream, args);
                });
  }
}

TEST(Quantize, WhatIsNotFiniteIsSeen) {
  const Kernels& kernels = cpu_kernels();
  ThreadPool pool(1);
  Stream stream{.pool = &pool};
  for (double bad : {static_cast<double>(kInfinity), static_cast<double>(kNan)}) {
    Buffer x = random_buffer(Dtype::kF32, {3, 16}, 1);
    x.set(5, bad);
    Forms forms(ScaleBlock::kTensor, 3, 16);
    float amax = 7;
    kernels.quantize.amax(stream, x.view(), &amax);
    QuantizeArgs args;
    args.x = x.view();
    args.amax = &amax;
    forms.attach(args);
    kernels.quantize.quantize(stream, args);
    EXPECT_EQ(forms.row_bytes[5], kFp8Nan);
    EXPECT_EQ(forms.column_bytes[5 * 16], kFp8Nan);
    EXPECT_NE(forms.row_bytes[4], kFp8Nan);
    EXPECT_EQ(std::isnan(forms.row_scales.values()[0]), std::isinf(bad));
  }
}

TEST(ScaledProduct, IsTheProductOfTheNumbersItReads) {
  for (bool blocks : {false, true}) {
    for (Dtype out : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
      for (double beta : {0.0, 1.0}) {
        std::int64_t m = 33, n = 128, k = 256;
        on_every_level([&](const Kernels& kernels, const Stream& stream) {
          Buffer a = random_buffer(Dtype::kF32, {m, k}, 1),
                 b = random_buffer(Dtype::kF32, {n, k}, 2);
          Buffer c = random_buffer(out, {m, n}, 4), bias = random_buffer(out, {n}, 5);
          ScaleBlock of_a = blocks ? ScaleBlock::kRun : ScaleBlock::kTensor;
          ScaleBlock of_b = blocks ? ScaleBlock::kSquare : ScaleBlock::kTensor;
          Forms to_a(of_a, m, k), to_b(of_b, n, k);
          float amax = 1;
          QuantizeArgs args;
          args.amax = &amax;
          args.x = a.view();
          args.block = of_a;
          to_a.attach(args);
          kernels.quantize.quantize(stream, args);
          args.x = b.view();
          args.block = of_b;
          to_b.attach(args);
          args.format = Fp8Format::kE5m2;
          kernels.quantize.quantize(stream, args);
          std::vector<double> before = c.values();
          ScaledView left{{to_a.row_bytes.data(), Dtype::kU8, {m, k}},
                          to_a.row_scales.view(),
                          Fp8Format::kE4m3,
                          of_a};
          ScaledView right{{to_b.row_bytes.data(), Dtype::kU8, {n, k}},
                           to_b.row_scales.view(),
                           Fp8Format::kE5m2,
                           of_b};
          kernels.quantize.scaled_gemm(
              stream, {.a = left, .b = right, .c = c.view(), .beta = beta, .bias = bias.view()});
          std::vector<double> added = bias.values(), after = c.values();
          std::vector<double> a_scales = to_a.row_scales.values(),
                              b_scales = to_b.row_scales.values();
          auto number = [&](const Forms& from, const std::vector<double>& scales, Fp8Format format,
                            ScaleBlock block, std::int64_t row, std::int64_t i) {
            std::int64_t place = block == ScaleBlock::kTensor ? 0
                                 : block == ScaleBlock::kRun  ? i / 128 * 36 + row
                                                              : row / 128 * 4 + i / 128;
            return static_cast<double>(
                       from_fp8(format, from.row_bytes[static_cast<std::size_t>(row * k + i)])) *
                   scales[static_cast<std::size_t>(place)];
          };
          for (std::int64_t i = 0; i < m; i += 8) {
            for (std::int64_t j = 0; j < n; j += 5) {
              double sum = added[static_cast<std::size_t>(j)] +
                           beta * before[static_cast<std::size_t>(i * n + j)];
              for (std::int64_t l = 0; l < k; ++l) {
                sum += number(to_a, a_scales, Fp8Format::kE4m3, of_a, i, l) *
                       number(to_b, b_scales, Fp8Format::kE5m2, of_b, j, l);
              }
              double got = after[static_cast<std::size_t>(i * n + j)];
              EXPECT_NEAR(got, sum, 8e-6 + 2 * epsilon_of(out) * std::max(1.0, std::fabs(sum)));
            }
          }
          return c.bits();
        });
      }
    }
  }
}

TEST(AmaxHistory, FollowsTheRecipe) {
  const Kernels& kernels = cpu_kernels();
  Stream stream;
  StepState state;
  std::vector<float> seen{0, 0, 0}, used{0, 0, 0}, history(9);
  auto view = [](std::vector<float>& of, Shape shape) {
    return View{of.data(), Dtype::kF32, shape};
  };
  auto step = [&](std::vector<float> now, bool largest, std::int64_t interval) {
    seen = now;
    if (state.skip == 0) ++state.update;
    kernels.quantize.update_amax(stream, {.seen = view(seen, {3}),
                                          .history = view(history, {3, 3}),
                                          .used = view(used, {3}),
                                          .state = &state,
                                          .largest = largest,
                                          .interval = interval});
  };
  step({4, 0, 1}, true, 1);
  EXPECT_EQ(used, (std::vector<float>{4, 0, 1}));
  step({2, 0, kInfinity}, true, 1);
  EXPECT_EQ(used, (std::vector<float>{4, 0, 1}));  // neither zero nor infinity yields a scale
  step({1, 5, 3}, false, 1);
  EXPECT_EQ(used, (std::vector<float>{1, 5, 3}));
  state.skip = 1;
  step({9, 9, 9}, true, 1);
  EXPECT_EQ(used, (std::vector<float>{1, 5, 3}));
  state.skip = 0;
  step({0.5f, 0, 0}, true, 1);  // the fourth update: 4 leaves the history
  EXPECT_EQ(used[0], 2);
  EXPECT_EQ(used[1], 5);
  step({8, 8, 8}, true, 2);  // the fifth update is not a multiple of two
  EXPECT_EQ(used[0], 2);
  step({1, 1, 1}, true, 2);
  EXPECT_EQ(used[0], 8);
}

}  // namespace
}  // namespace bev::kernel_test
