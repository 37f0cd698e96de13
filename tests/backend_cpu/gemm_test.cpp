#include "kernels/gemm.h"

#include <gtest/gtest.h>

#include <array>

#include "tensor/arena.h"
#include "tensor/tensor.h"
#include "tests/backend_cpu/kernel_fixture.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {
using namespace kernel_test;

struct Case {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
  double alpha = 1, beta = 0;
  bool bias = false;
};

std::vector<double> reference(const Case& c, const std::vector<double>& a,
                              const std::vector<double>& b, const std::vector<double>& bias,
                              const std::vector<double>& old) {
  std::vector<double> out(static_cast<std::size_t>(c.m * c.n));
  for (std::int64_t i = 0; i < c.m; ++i) {
    for (std::int64_t j = 0; j < c.n; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < c.k; ++k) {
        sum += a[static_cast<std::size_t>(c.transpose_a ? k * c.m + i : i * c.k + k)] *
               b[static_cast<std::size_t>(c.transpose_b ? j * c.k + k : k * c.n + j)];
      }
      auto at = static_cast<std::size_t>(i * c.n + j);
      out[at] = c.alpha * sum + (c.beta != 0 ? c.beta * old[at] : 0) +
                (c.bias ? bias[static_cast<std::size_t>(j)] : 0);
    }
  }
  return out;
}

void run_case(const Case& c, Dtype dtype, Dtype c_dtype) {
  SCOPED_TRACE(concat(name_of(dtype), " to ", name_of(c_dtype), " ", c.m, " x ", c.n, " x ", c.k,
                      c.transpose_a ? " ta" : "", c.transpose_b ? " tb" : "", " alpha ", c.alpha,
                      " beta ", c.beta, c.bias ? " bias" : ""));
  Shape a_shape = c.transpose_a ? Shape{c.k, c.m} : Shape{c.m, c.k};
  Shape b_shape = c.transpose_b ? Shape{c.n, c.k} : Shape{c.k, c.n};
  Buffer a = random_buffer(dtype, a_shape, 1), b = random_buffer(dtype, b_shape, 2);
  Buffer bias = random_buffer(dtype, {c.n}, 3);
  Buffer old = c.beta == 0 ? Buffer(c_dtype, {c.m, c.n}) : random_buffer(c_dtype, {c.m, c.n}, 4);
  std::vector<double> want = reference(c, a.values(), b.values(), bias.values(), old.values());
  Dtype sum_dtype = accumulate_dtype(dtype);
  // The order of summation is free: k roundings of partial sums, most of them small.
  double tolerance =
      2 * epsilon_of(c_dtype) + epsilon_of(sum_dtype) * (16 + static_cast<double>(c.k) / 2);
  on_every_level([&](const Kernels& kernels, const Stream& stream) {
    Buffer out = old;
    kernels.gemm.gemm(stream, {.a = a.view(),
                               .b = b.view(),
                               .c = out.view(),
                               .transpose_a = c.transpose_a,
                               .transpose_b = c.transpose_b,
                               .alpha = c.alpha,
                               .beta = c.beta,
                               .bias = c.bias ? bias.view() : View{}});
    expect_near(out.values(), want, tolerance);
    EXPECT_TRUE(out.guards_intact());
    return out.bits();
  });
}

void run_all_dtypes(const Case& c) {
  for (Dtype dtype : kFloats) {
    run_case(c, dtype, dtype);
    if (size_of(dtype) == 2) run_case(c, dtype, Dtype::kF32);
  }
}

TEST(Gemm, AllLayoutsMatchTheReference) {
  for (bool transpose_a : {false, true}) {
    for (bool transpose_b : {false, true}) run_all_dtypes({37, 53, 29, transpose_a, transpose_b});
  }
}

TEST(Gemm, AlphaBetaAndBias) {
  for (double alpha : {1.0, 0.5, -2.0}) {
    for (double beta : {0.0, 1.0, 0.25}) {
      for (bool bias : {false, true}) run_all_dtypes({9, 17, 33, false, true, alpha, beta, bias});
    }
  }
}

TEST(Gemm, SeveralTilesAndOddSizes) {
  run_all_dtypes({300, 401, 70, false, true, 1, 0, true});
  run_all_dtypes({259, 129, 601, true, false, 1, 1, false});
  run_all_dtypes({65, 97, 515, false, false, 1, 0, false});
  run_all_dtypes({600, 7, 19, false, true, 1, 0, true});
}

TEST(Gemm, FewRowsMatchTheReference) {
  for (std::int64_t m : {1, 2, 3, 4, 5}) {
    for (bool transpose_b : {false, true}) {
      run_all_dtypes({m, 301, 130, false, transpose_b, 1, 0, true});
      run_all_dtypes({m, 33, 77, true, transpose_b, 0.5, 1, false});
    }
  }
  run_all_dtypes({1, 1, 1, false, false});
  run_all_dtypes({5, 1, 40, false, true});
}

TEST(Gemm, EmptyDims) {
  for (bool transpose : {false, true}) {
    run_all_dtypes({0, 5, 7, transpose, transpose});
    run_all_dtypes({5, 0, 7, transpose, transpose});
    run_all_dtypes({5, 7, 0, transpose, transpose});
    run_all_dtypes({5, 7, 0, transpose, transpose, 1, 0.5, true});
    run_all_dtypes({0, 0, 0, transpose, transpose});
  }
}

// The rest of each row of a is NaN; that of c must stay unchanged.
TEST(Gemm, RowsMayBeLongerThanTheMatrix) {
  constexpr std::int64_t kM = 37, kN = 53, kK = 29, kMore = 11;
  auto cut = [](const std::vector<double>& rows, std::int64_t stride, std::int64_t columns) {
    std::vector<double> out;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (static_cast<std::int64_t>(i) % stride < columns) out.push_back(rows[i]);
    }
    return out;
  };
  for (bool transpose_a : {false, true}) {
    for (std::int64_t m : {kM, std::int64_t{3}}) {
      for (Dtype dtype : kFloats) {
        std::int64_t a_columns = transpose_a ? m : kK;
        Buffer a = random_buffer(dtype, {transpose_a ? kK : m, a_columns + kMore}, 1);
        std::vector<double> a_values = a.values();
        for (std::size_t i = 0; i < a_values.size(); ++i) {
          if (static_cast<std::int64_t>(i) % (a_columns + kMore) >= a_columns) a.set(i, NAN);
        }
        Buffer b = random_buffer(dtype, {kN, kK}, 2);
        Buffer old = random_buffer(dtype, {m, kN + kMore}, 4);
        Buffer plain_a(dtype, {transpose_a ? kK : m, a_columns},
                       cut(a_values, a_columns + kMore, a_columns));
        Buffer plain(dtype, {m, kN}, cut(old.values(), kN + kMore, kN));
        on_every_level([&](const Kernels& kernels, const Stream& stream) {
          Buffer longer = old, shorter = plain;
          GemmArgs args{.a = a.view(), .b = b.view(), .c = longer.view(), .bias = {}};
          args.transpose_a = transpose_a;
          args.transpose_b = true;
          args.beta = 0.5;
          args.a_columns = a_columns;
          args.c_columns = kN;
          kernels.gemm.gemm(stream, args);
          GemmArgs same{.a = plain_a.view(), .b = b.view(), .c = shorter.view(), .bias = {}};
          same.transpose_a = transpose_a;
          same.transpose_b = true;
          same.beta = 0.5;
          kernels.gemm.gemm(stream, same);
          EXPECT_EQ(cut(longer.values(), kN + kMore, kN), shorter.values());
          std::vector<double> before = old.values(), after = longer.values();
          for (std::size_t i = 0; i < after.size(); ++i) {
            if (static_cast<std::int64_t>(i) % (kN + kMore) < kN) continue;
            EXPECT_EQ(after[i], before[i]);
          }
          return longer.bits();
        });
      }
    }
  }
}

// Integers are exact in every dtype, so the sum must be exact, too, on every path.
TEST(Gemm, AccumulatesIntoF32Exactly) {
  constexpr std::int64_t kM = 130, kN = 70, kK = 600;
  std::vector<double> a(kM * kK), b(kK * kN);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i * 7 % 11) - 5;
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<double>(i * 5 % 13) - 6;
  for (Dtype dtype : kFloats) {
    Dtype c_dtype = accumulate_dtype(dtype);
    Buffer left(dtype, {kK, kM}, a), right(dtype, {kK, kN}, b);
    std::vector<double> old(kM * kN, 1000);
    std::vector<double> want = reference({kM, kN, kK, true, false, 1, 1}, a, b, {}, old);
    on_every_level([&](const Kernels& kernels, const Stream& stream) {
      Buffer out(c_dtype, {kM, kN}, old);
      kernels.gemm.gemm(stream, {.a = left.view(),
                                 .b = right.view(),
                                 .c = out.view(),
                                 .transpose_a = true,
                                 .beta = 1,
                                 .bias = {}});
      expect_near(out.values(), want, 0);
      return out.bits();
    });
  }
}

TEST(Gemm, NanAndInfinityReachTheResult) {
  for (Dtype dtype : kFloats) {
    Buffer a = random_buffer(dtype, {20, 40}, 1), b = random_buffer(dtype, {30, 40}, 2);
    a.set(3 * 40 + 5, std::numeric_limits<double>::quiet_NaN());
    a.set(7 * 40 + 9, std::numeric_limits<double>::infinity());
    on_every_level([&](const Kernels& kernels, const Stream& stream) {
      Buffer out(dtype, {20, 30});
      kernels.gemm.gemm(
          stream, {.a = a.view(), .b = b.view(), .c = out.view(), .transpose_b = true, .bias = {}});
      std::vector<double> values = out.values();
      for (std::size_t j = 0; j < 30; ++j) {
        EXPECT_TRUE(std::isnan(values[3 * 30 + j]));
        EXPECT_TRUE(std::isinf(values[7 * 30 + j]));
        EXPECT_TRUE(std::isfinite(values[8 * 30 + j]));
      }
      return std::string();
    });
  }
}

// Several blocks of rows, columns and depth; the second GEMM must not read b again.
TEST(Gemm, AKeptFactorGivesTheSameBitsAndIsNotReadAgain) {
  Arena arena(make_host_memory());
  const Dtype dtype = Dtype::kBf16;
  for (auto [m, n, k] :
       {std::array<std::int64_t, 3>{1100, 47, 70}, {20, 1700, 33}, {33, 50, 2100}}) {
    for (bool transpose_b : {false, true}) {
      SCOPED_TRACE(concat(m, " x ", n, " x ", k, " ", transpose_b));
      const Shape shape = transpose_b ? Shape{n, k} : Shape{k, n};
      Buffer a = random_buffer(dtype, {m, k}, 1), b = random_buffer(dtype, shape, 2);
      on_every_level([&](const Kernels& kernels, const Stream& stream) {
        Buffer plain(dtype, {m, n}), first(dtype, {m, n}), later(dtype, {m, n}), gone(dtype, shape);
        GemmArgs args{.a = a.view(),
                      .b = b.view(),
                      .c = plain.view(),
                      .transpose_b = transpose_b,
                      .bias = {}};
        kernels.gemm.gemm(stream, args);
        auto bytes = static_cast<std::int64_t>(kernels.gemm.packed_bytes(args));
        if (bytes == 0) return plain.bits();  // this CPU multiplies bf16 as f32
        EXPECT_GE(bytes, 2 * n * k);
        Tensor memory(arena, Dtype::kU8, {bytes}, "packed");
        std::memset(memory.view().data, 0xff, static_cast<std::size_t>(bytes));
        PackedOperand packed{.memory = static_cast<std::byte*>(memory.view().data)};
        args.packed_b = &packed;
        args.c = first.view();
        kernels.gemm.gemm(stream, args);
        EXPECT_TRUE(packed.made);
        args.b = gone.view();
        args.c = later.view();
        kernels.gemm.gemm(stream, args);
        EXPECT_EQ(first.bits(), plain.bits());
        EXPECT_EQ(later.bits(), plain.bits());
        return plain.bits();
      });
    }
  }
}

TEST(Gemm, SomeProductsKeepNoFactor) {
  const auto kept = [](Dtype dtype, std::int64_t m, std::int64_t k) {
    Buffer a(dtype, {m, k}), b(dtype, {40, k}), c(dtype, {m, 40});
    return cpu_kernels().gemm.packed_bytes(
        {.a = a.view(), .b = b.view(), .c = c.view(), .transpose_b = true, .bias = {}});
  };
  if (kept(Dtype::kBf16, 64, 16) == 0) GTEST_SKIP() << "this CPU multiplies bf16 as f32";
  EXPECT_EQ(kept(Dtype::kBf16, 1, 16), 0u) << "few rows read b as it is";
  EXPECT_EQ(kept(Dtype::kBf16, 5000, 16), 0u) << "packing is little beside multiplying";
  EXPECT_EQ(kept(Dtype::kF16, 64, 16), 0u);
  EXPECT_EQ(kept(Dtype::kF32, 64, 16), 0u);
  EXPECT_EQ(kept(Dtype::kBf16, 64, 0), 0u);
}

TEST(Gemm, RefusesShapesAndDtypesThatDoNotFit) {
  ThreadPool pool(1);
  Stream stream{.pool = &pool};
  Buffer a(Dtype::kF32, {2, 3}), b(Dtype::kF32, {4, 5}), c(Dtype::kF32, {2, 5});
  Buffer half(Dtype::kBf16, {3, 5});
  expect_error(ErrorKind::kShape, {"gemm: a [2, 3], b [4, 5], c [2, 5]"}, [&] {
    cpu_kernels().gemm.gemm(stream, {.a = a.view(), .b = b.view(), .c = c.view(), .bias = {}});
  });
  expect_error(ErrorKind::kInternal, {"b bf16"}, [&] {
    cpu_kernels().gemm.gemm(stream, {.a = a.view(), .b = half.view(), .c = c.view(), .bias = {}});
  });
}
}  // namespace
}  // namespace bev
