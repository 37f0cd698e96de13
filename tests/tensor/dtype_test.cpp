#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tensor/shape.h"
#include "tensor/view.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {
// By the definition: sign, exponent, fraction.
double value_of(std::uint32_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>((bits & 0x7fffu) >> fraction_bits);
  const double fraction = static_cast<double>(bits & ((1u << fraction_bits) - 1));
  double magnitude = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    magnitude = fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                              : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, 1 - bias - fraction_bits);
  } else {
    magnitude = std::ldexp(1 + std::ldexp(fraction, -fraction_bits), exponent - bias);
  }
  return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

template <class T>
void check_every_value(int exponent_bits) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    T x;
    x.bits = static_cast<std::uint16_t>(bits);
    const float value = x;
    const double want = value_of(bits, exponent_bits);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(T(value)))) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), want) << bits;
    ASSERT_EQ(std::signbit(value), std::signbit(want)) << bits;
    ASSERT_EQ(T(value).bits, bits);
  }
}

// Between two neighbours: below the middle down, above it up, on it to the even one.
template <class T>
void check_rounding(std::uint32_t infinity_bits) {
  for (std::uint32_t bits = 0; bits < infinity_bits; ++bits) {
    T low, high;
    low.bits = static_cast<std::uint16_t>(bits);
    high.bits = static_cast<std::uint16_t>(bits + 1);
    float top = static_cast<float>(high);
    if (std::isinf(top)) top = 2 * static_cast<float>(low);  // only the order matters below
    double middle = (static_cast<double>(static_cast<float>(low)) + top) / 2;
    if (bits + 1 == infinity_bits) {
      T before;
      before.bits = static_cast<std::uint16_t>(bits - 1);
      double step = static_cast<double>(static_cast<float>(low)) - static_cast<float>(before);
      middle = static_cast<double>(static_cast<float>(low)) + step / 2;
    }
    const auto exact = static_cast<float>(middle);
    if (static_cast<double>(exact) != middle) continue;  // a subnormal below float's own
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    for (std::uint32_t sign : {0u, 0x8000u}) {
      const float factor = sign != 0 ? -1.0f : 1.0f;
      ASSERT_EQ(T(factor * exact).bits, sign | even) << bits;
      ASSERT_EQ(T(factor * std::nextafter(exact, 0.0f)).bits, sign | bits) << bits;
      const float above = std::nextafter(exact, std::numeric_limits<float>::infinity());
      ASSERT_EQ(T(factor * above).bits, sign | (bits + 1)) << bits;
    }
  }
}

TEST(Bf16, EveryValueRoundTrips) { check_every_value<Bf16>(8); }
TEST(F16, EveryValueRoundTrips) { check_every_value<F16>(5); }
TEST(Bf16, RoundsToNearestEven) { check_rounding<Bf16>(0x7f80); }
TEST(F16, RoundsToNearestEven) { check_rounding<F16>(0x7c00); }

TEST(F16, OverflowAndUnderflow) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(F16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(F16(65519.99f).bits, 0x7bff);
  EXPECT_EQ(F16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(F16(1e30f).bits, 0x7c00);
  EXPECT_EQ(F16(-infinity).bits, 0xfc00);
  EXPECT_EQ(F16(0x1p-25f).bits, 0);
  EXPECT_EQ(F16(0x1.8p-25f).bits, 1);
  EXPECT_EQ(F16(-0x1p-60f).bits, 0x8000);
}

TEST(Bf16, NanStaysNan) {
  EXPECT_TRUE(std::isnan(static_cast<float>(Bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(Bf16(std::bit_cast<float>(0xffffffffu)))));
  EXPECT_EQ(static_cast<float>(Bf16(std::numeric_limits<float>::max())),
            std::numeric_limits<float>::infinity());
}

TEST(Dtype, NamesReadBack) {
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBf16, Dtype::kF16, Dtype::kI64, Dtype::kI32,
                      Dtype::kU8}) {
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
  }
  EXPECT_EQ(parse_dtype("bfloat16"), Dtype::kBf16);
  EXPECT_EQ(parse_dtype("half"), Dtype::kF16);
  EXPECT_EQ(parse_dtype("float8"), std::nullopt);
}

TEST(Dtype, VisitFloatGivesTheScalarType) {
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    EXPECT_TRUE(is_float(dtype));
    EXPECT_EQ(visit_float(dtype, [](auto type) { return sizeof(type); }), size_of(dtype));
    EXPECT_EQ(visit_float(dtype, [](auto type) { return DtypeOf<decltype(type)>::value; }), dtype);
  }
  EXPECT_FALSE(is_float(Dtype::kI32));
  expect_error(ErrorKind::kInternal, {"i32"},
               [] { visit_float(Dtype::kI32, [](auto type) { return sizeof(type); }); });
}

TEST(Shape, CountsAndText) {
  Shape shape{2, 3, 4};
  EXPECT_EQ(shape.numel(), 24);
  EXPECT_EQ(shape.row_numel(), 12);
  EXPECT_EQ(to_text(shape), "[2, 3, 4]");
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ((Shape{0, 5}).numel(), 0);
  EXPECT_FALSE(shape == (Shape{2, 3}));
  EXPECT_TRUE(shape == (Shape{2, 3, 4}));
  expect_error(ErrorKind::kShape, {"negative", "-1"}, [] { Shape bad{2, -1}; });
  expect_error(ErrorKind::kShape, {"at most 5"}, [] { Shape bad{1, 1, 1, 1, 1, 1}; });
}

TEST(View, RowsReshapeAndTypedAddress) {
  std::vector<float> data(24);
  View view{data.data(), Dtype::kF32, {6, 4}};
  EXPECT_EQ(view.rows(2, 5).as<float>(), data.data() + 8);
  EXPECT_EQ(view.rows(2, 5).shape, (Shape{3, 4}));
  EXPECT_EQ(view.reshape({2, 12}).shape, (Shape{2, 12}));
  EXPECT_EQ(view.flat().shape, (Shape{24}));
  EXPECT_EQ(view.bytes(), 96u);
  expect_error(ErrorKind::kShape, {"rows 5..7"}, [&] { view.rows(5, 7); });
  expect_error(ErrorKind::kShape, {"[6, 4]", "[5]"}, [&] { view.reshape({5}); });
  expect_error(ErrorKind::kInternal, {"f32", "bf16"}, [&] { view.as<Bf16>(); });
}
}  // namespace
}  // namespace bev
