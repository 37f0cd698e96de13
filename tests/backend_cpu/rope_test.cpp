#include "kernels/rope.h"

#include <gtest/gtest.h>

#include "tests/backend_cpu/kernel_fixture.h"

namespace bev {
namespace {

using kernel_test::accumulate_dtype;
using kernel_test::Buffer;
using kernel_test::epsilon_of;
using kernel_test::expect_near;
using kernel_test::kFloats;
using kernel_test::on_every_level;
using kernel_test::random_buffer;

TEST(RopeTable, HoldsCosinesThenSines) {
  const std::vector<std::int32_t> positions = {0, 1, 5, 0, 1000, 131071, 7};
  const std::vector<double> frequencies = {1, 0.1, 0.0123456789, 3e-5, 1.0 / 3};
  const auto rows = static_cast<std::int64_t>(positions.size());
  const auto half = static_cast<std::int64_t>(frequencies.size());
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32}) {
    std::vector<double> expected;
    for (std::int32_t position : positions) {
      for (bool sine : {false, true}) {
        for (double frequency : frequencies) {
          const double angle = dtype == Dtype::kF64
                                   ? frequency * position
                                   : static_cast<float>(frequency) * static_cast<float>(position);
          expected.push_back(1.25 * (sine ? std::sin(angle) : std::cos(angle)));
        }
      }
    }
    on_every_level([&](const Kernels& kernels, const Stream& stream) {
      Buffer table(dtype, {rows, 2 * half});
      kernels.rope.table(stream, {positions.data(), frequencies, 1.25, table.view()});
      expect_near(table.values(), expected, 2 * epsilon_of(dtype));
      EXPECT_TRUE(table.guards_intact());
      return table.bits();
    });
  }
}

TEST(RopeTable, TakesNoRows) {
  on_every_level([&](const Kernels& kernels, const Stream& stream) {
    Buffer table(Dtype::kF32, {0, 8});
    kernels.rope.table(stream, {nullptr, {}, 1, table.view()});
    return table.bits();
  });
}

struct Case {
  std::int64_t rows, row, heads, head_size, rotated;
};

std::vector<double> rotate(const Case& item, std::vector<double> x,
                           const std::vector<double>& table, bool interleaved, bool inverse) {
  const std::int64_t half = item.rotated / 2;
  for (std::int64_t t = 0; t < item.rows; ++t) {
    for (std::int64_t h = 0; h < item.heads; ++h) {
      for (std::int64_t i = 0; i < half; ++i) {
        const std::int64_t head = t * item.row + h * item.head_size;
        auto& a = x[static_cast<std::size_t>(head + (interleaved ? 2 * i : i))];
        auto& b = x[static_cast<std::size_t>(head + (interleaved ? 2 * i + 1 : i + half))];
        const double c = table[static_cast<std::size_t>(t * item.rotated + i)];
        const double s =
            (inverse ? -1 : 1) * table[static_cast<std::size_t>(t * item.rotated + half + i)];
        const double first = a * c - b * s;
        b = b * c + a * s;
        a = first;
      }
    }
  }
  return x;
}

TEST(RopeApply, RotatesPairsOfTheFirstHeads) {
  // The last heads of a row and the last dims of a head are not rotated.
  for (const Case& item :
       {Case{5, 6 * 64, 4, 64, 64}, Case{33, 3 * 10 + 3, 2, 10, 6}, Case{4, 2 * 80, 2, 80, 32},
        Case{1, 7, 1, 7, 2}, Case{0, 16, 1, 16, 16}, Case{3, 16, 0, 16, 16}}) {
    for (Dtype dtype : kFloats) {
      Buffer table = random_buffer(accumulate_dtype(dtype), {item.rows, item.rotated}, 2);
      for (bool interleaved : {false, true}) {
        for (bool inverse : {false, true}) {
          const std::vector<double> x = random_buffer(dtype, {item.rows, item.row}, 1).values();
          const std::vector<double> expected =
              rotate(item, x, table.values(), interleaved, inverse);
          on_every_level([&](const Kernels& kernels, const Stream& stream) {
            Buffer rotated(dtype, {item.rows, item.row}, x);
            kernels.rope.apply(stream, {.x = rotated.view(),
                                        .cos_sin = table.view(),
                                        .heads = item.heads,
                                        .head_size = item.head_size,
                                        .interleaved = interleaved,
                                        .inverse = inverse});
            expect_near(rotated.values(), expected, 4 * epsilon_of(dtype));
            EXPECT_TRUE(rotated.guards_intact());
            return rotated.bits();
          });
        }
      }
    }
  }
}

// The backward of a rotation is its adjoint: <dy, R x> = <R^T dy, x>, including scaled tables.
TEST(RopeApply, InverseIsTheAdjoint) {
  const Case item = {9, 3 * 20, 2, 20, 12};
  Buffer table = random_buffer(Dtype::kF64, {item.rows, item.rotated}, 2);
  for (bool interleaved : {false, true}) {
    on_every_level([&](const Kernels& kernels, const Stream& stream) {
      Buffer x = random_buffer(Dtype::kF64, {item.rows, item.row}, 3);
      Buffer dy = random_buffer(Dtype::kF64, {item.rows, item.row}, 4);
      const std::vector<double> x_before = x.values(), dy_before = dy.values();
      RopeApplyArgs args = {x.view(), table.view(), item.heads, item.head_size,
                            0,        interleaved,  false};
      kernels.rope.apply(stream, args);
      args.x = dy.view();
      args.inverse = true;
      kernels.rope.apply(stream, args);
      const std::vector<double> x_after = x.values(), dy_after = dy.values();
      double left = 0, right = 0;
      for (std::size_t i = 0; i < x_before.size(); ++i) {
        left += dy_before[i] * x_after[i];
        right += dy_after[i] * x_before[i];
      }
      EXPECT_NEAR(left, right, 1e-12);
      return x.bits() + dy.bits();
    });
  }
}

}  // namespace
}  // namespace bev
