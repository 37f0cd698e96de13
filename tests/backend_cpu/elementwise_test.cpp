#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include "tensor/random_rows.h"
#include "tests/backend_cpu/kernel_fixture.h"

namespace bev {
namespace {
using namespace kernel_test;

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInfinity = std::numeric_limits<double>::infinity();

// Odd, empty, and larger than one piece of work.
const std::vector<std::int64_t> kSizes = {0, 1, 7, 1003, 40007};

TEST(Fill, EveryDtype) {
  for (Dtype dtype : kFloats) {
    for (std::int64_t size : kSizes) {
      on_every_level([&](const Kernels& kernels, const Stream& stream) {
        Buffer x(dtype, {size});
        kernels.fill(stream, x.view(), -1.5);
        expect_near(x.values(), std::vector<double>(static_cast<std::size_t>(size), -1.5), 0);
        EXPECT_TRUE(x.guards_intact());
        return x.bits();
      });
    }
  }
  std::vector<std::int32_t> words(9);
  std::vector<std::int64_t> longs(9);
  std::vector<std::uint8_t> bytes(9);
  ThreadPool pool(2);
  Stream stream{.pool = &pool};
  cpu_kernels().fill(stream, {words.data(), Dtype::kI32, {9}}, -3);
  cpu_kernels().fill(stream, {longs.data(), Dtype::kI64, {9}}, 1e12);
  cpu_kernels().fill(stream, {bytes.data(), Dtype::kU8, {9}}, 200);
  EXPECT_EQ(words, std::vector<std::int32_t>(9, -3));
  EXPECT_EQ(longs, std::vector<std::int64_t>(9, 1000000000000));
  EXPECT_EQ(bytes, std::vector<std::uint8_t>(9, 200));
}

TEST(Cast, BetweenAllFloatDtypes) {
  for (Dtype from : kFloats) {
    for (Dtype to : kFloats) {
      SCOPED_TRACE(concat(name_of(from), " to ", name_of(to)));
      for (std::int64_t size : kSizes) {
        Buffer x = random_buffer(from, {size}, 1, 3);
        if (size > 7) {
          x.set(1, kNan);
          x.set(2, kInfinity);
          x.set(3, -kInfinity);
          x.set(4, 0x1p-24);
          x.set(5, -0.0);
          x.set(6, 65519.0);
        }
        Buffer want(to, {size}, x.values());  // through float, as the scalar types round
        on_every_level([&](const Kernels& kernels, const Stream& stream) {
          Buffer y(to, {size});
          kernels.cast(stream, x.view(), y.view());
          expect_near(y.values(), want.values(), 0);
          return y.bits();
        });
      }
    }
  }
}

TEST(Cast, F64To16BitsRoundsOnce) {
  // Just above the midpoint of two bf16 neighbours, but on it after rounding to f32.
  const double above = 1 + 0x1p-8 + 0x1p-40, below = 1 + 3 * 0x1p-8 - 0x1p-40;
  Buffer x(Dtype::kF64, {4}, {above, below, -above, 1e300});
  on_every_level([&](const Kernels& kernels, const Stream& stream) {
    Buffer y(Dtype::kBf16, {4});
    kernels.cast(stream, x.view(), y.view());
    expect_near(y.values(), {1 + 0x1p-7, 1 + 0x1p-7, -1 - 0x1p-7, kInfinity}, 0);
    return y.bits();
  });
}

TEST(Add, MayAliasEitherOperand) {
  for (Dtype dtype : kFloats) {
    for (std::int64_t size : kSizes) {
      Buffer a = random_buffer(dtype, {size}, 1), b = random_buffer(dtype, {size}, 2);
      std::vector<double> want = a.values(), other = b.values();
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += other[i];
      for (int alias : {0, 1, 2}) {
        on_every_level([&](const Kernels& kernels, const Stream& stream) {
          Buffer x = a, y = b, z(dtype, {size});
          Buffer& out = alias == 0 ? z : alias == 1 ? x : y;
          kernels.elementwise.add(stream, x.view(), y.view(), out.view());
          expect_near(out.values(), want, 2 * epsilon_of(dtype));
          return out.bits();
        });
      }
    }
  }
}

TEST(Add, WidensWhatIsAddedToAnF32Stream) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    for (std::int64_t size : kSizes) {
      Buffer a = random_buffer(Dtype::kF32, {size}, 1), b = random_buffer(dtype, {size}, 2);
      Buffer wide(Dtype::kF32, {size}, b.values());
      on_every_level([&](const Kernels& kernels, const Stream& stream) {
        Buffer want(Dtype::kF32, {size}), x = a;
        kernels.elementwise.add(stream, a.view(), wide.view(), want.view());
        kernels.elementwise.add(stream, x.view(), b.view(), x.view());
        EXPECT_TRUE(x.bits() == want.bits());
        return x.bits();
      });
    }
  }
}

TEST(Axpby, MixedDtypes) {
  for (Dtype from : kFloats) {
    for (Dtype to : kFloats) {
      for (double beta : {0.0, 1.0, -0.5}) {
        Buffer x = random_buffer(from, {1003}, 1);
        Buffer old = beta == 0 ? Buffer(to, {1003}) : random_buffer(to, {1003}, 2);
        std::vector<double> want = x.values(), before = old.values();
        for (std::size_t i = 0; i < want.size(); ++i) {
          want[i] = 0.75 * want[i] + (beta == 0 ? 0 : beta * before[i]);
        }
        on_every_level([&](const Kernels& kernels, const Stream& stream) {
          Buffer y = old;
          kernels.elementwise.axpby(stream, 0.75, x.view(), beta, y.view());
          expect_near(y.values(), want, 2 * epsilon_of(to) + 2 * epsilon_of(accumulate_dtype(to)));
          return y.bits();
        });
      }
    }
  }
}

TEST(Scale, ByANumberOnTheDevice) {
  for (Dtype dtype : kFloats) {
    for (std::int64_t size : kSizes) {
      Buffer x = random_buffer(dtype, {size}, 1), factor(accumulate_dtype(dtype), {1}, {-0.3});
      std::vector<double> want = x.values();
      for (double& value : want) value *= factor.values()[0];
      on_every_level([&](const Kernels& kernels, const Stream& stream) {
        Buffer y(dtype, {size}), alias = x;
        kernels.elementwise.scale(stream, x.view(), factor.view(), y.view());
        kernels.elementwise.scale(stream, alias.view(), factor.view(), alias.view());
        expect_near(y.values(), want, epsilon_of(dtype));
        EXPECT_EQ(alias.bits(), y.bits());
        EXPECT_TRUE(y.guards_intact());
        return y.bits();
      });
    }
  }
}

TEST(AddRows, AddsToEveryRow) {
  for (Dtype dtype : kFloats) {
    for (std::int64_t rows : {0, 1, 300}) {
      Buffer x = random_buffer(dtype, {rows, 67}, 1), row = random_buffer(dtype, {67}, 2);
      std::vector<double> want = x.values(), add = row.values();
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += add[i % 67];
      on_every_level([&](const Kernels& kernels, const Stream& stream) {
        Buffer y = x;
        kernels.elementwise.add_rows(stream, y.view(), row.view());
        expect_near(y.values(), want, 2 * epsilon_of(dtype));
        return y.bits();
      });
    }
  }
}

struct DropoutRows {
  explicit DropoutRows(std::int64_t rows) {
    for (std::int32_t i = 0; i < rows; ++i) {
      sample.push_back(5 - i / 3);
      position.push_back(100 + i * 7);
    }
  }
  RandomRows rows() const {
    return {.random_key = &key, .sample = sample.data(), .position = position.data(), .stream = 77};
  }
  bool kept(std::int64_t row, std::int64_t column, double p) const {
    auto at = static_cast<std::size_t>(row);
    PhiloxCounter words =
        philox({static_cast<std::uint32_t>(column / 4), static_cast<std::uint32_t>(position[at]),
                static_cast<std::uint32_t>(sample[at]), 77},
               key);
    return uniform_of(words[static_cast<std::size_t>(column % 4)]) >= p;
  }
  std::uint64_t key = 0x123456789abcdef0;
  std::vector<std::int32_t> sample, position;
};

TEST(Dropout, NumbersDependOnTheTokensPlaceOnly) {
  for (Dtype dtype : kFloats) {
    for (std::int64_t columns : {1, 5, 64, 203}) {
      for (double p : {0.0, 0.1, 0.5, 1.0}) {
        constexpr std::int64_t kRows = 90;
        DropoutRows random(kRows);
        Buffer x = random_buffer(dtype, {kRows, columns}, 1);
        std::vector<double> want = x.values();
        for (std::size_t i = 0; i < want.size(); ++i) {
          auto row = static_cast<std::int64_t>(i) / columns;
          bool keep = random.kept(row, static_cast<std::int64_t>(i) % columns, p);
          want[i] = keep ? want[i] / (1 - p) : 0;
        }
        on_every_level([&](const Kernels& kernels, const Stream& stream) {
          Buffer y = x;  // in place
          kernels.elementwise.dropout(
              stream, {.x = y.view(), .y = y.view(), .p = p, .random = random.rows()});
          expect_near(y.values(), want, 3 * epsilon_of(dtype));
          return y.bits();
        });
      }
    }
  }
}

TEST(CopyRows, StridesOnBothSides) {
  for (Dtype dtype : kFloats) {
    Buffer x = random_buffer(dtype, {500, 31}, 1);
    on_every_level([&](const Kernels& kernels, const Stream& stream) {
      Buffer y(dtype, {500, 45}, std::vector<double>(500 * 45, 9));
      CopyRowsArgs args{.src = static_cast<std::byte*>(x.view().data) + 3 * size_of(dtype),
                        .dst = static_cast<std::byte*>(y.view().data) + 5 * size_of(dtype),
                        .dtype = dtype,
                        .rows = 500,
                        .columns = 20,
                        .src_stride = 31,
                        .dst_stride = 45};
      kernels.elementwise.copy_rows(stream, args);
      args.columns = 0;
      kernels.elementwise.copy_rows(stream, args);
      std::vector<double> from = x.values(), want(500 * 45, 9);
      for (std::size_t row = 0; row < 500; ++row) {
        for (std::size_t j = 0; j < 20; ++j) want[row * 45 + 5 + j] = from[row * 31 + 3 + j];
      }
      expect_near(y.values(), want, 0);
      return y.bits();
    });
  }
}

TEST(FindNonfinite, SetsTheFlagOnly) {
  for (Dtype dtype : kFloats) {
    for (std::int64_t size : kSizes) {
      on_every_level([&](const Kernels& kernels, const Stream& stream) {
        Buffer x = random_buffer(dtype, {size}, 1, 60000);
        std::int32_t flag = 0, kept = 7;
        kernels.elementwise.find_nonfinite(stream, x.view(), &flag);
        kernels.elementwise.find_nonfinite(stream, x.view(), &kept);
        EXPECT_EQ(flag, 0);
        EXPECT_EQ(kept, 7);
        for (double bad : {kNan, kInfinity, -kInfinity}) {
          if (size == 0) continue;
          Buffer y = x;
          y.set(static_cast<std::size_t>(size - 1), bad);
          flag = 0;
          kernels.elementwise.find_nonfinite(stream, y.view(), &flag);
          EXPECT_EQ(flag, 1);
        }
        return std::string();
      });
    }
  }
}

TEST(SegmentSum, OfAnyLengths) {
  const std::vector<std::int64_t> lengths = {0, 0, 1, 7, 0, 1003, 40007, 2, 0};
  std::vector<std::int32_t> segment;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    segment.insert(segment.end(), static_cast<std::size_t>(lengths[s]),
                   static_cast<std::int32_t>(s));
  }
  for (Dtype dtype : kFloats) {
    Buffer x = random_buffer(dtype, {std::ssize(segment)}, 1);
    std::vector<double> values = x.values(), want(lengths.size(), 0.0);
    for (std::size_t t = 0; t < values.size(); ++t) {
      want[static_cast<std::size_t>(segment[t])] += values[t];
    }
    on_every_level([&](const Kernels& kernels, const Stream& stream) {
      Buffer sums(dtype, {std::ssize(lengths)});
      kernels.elementwise.segment_sum(stream, {x.view(), segment.data(), sums.view()});
      // The sum in f64 is rounded once.
      expect_near(sums.values(), want, epsilon_of(dtype) + 1e-13);
      EXPECT_TRUE(sums.guards_intact());
      return sums.bits();
    });
  }
}

TEST(ColumnSum, BetaAndWiderOutput) {
  for (Dtype from : kFloats) {
    for (Dtype to : {from, accumulate_dtype(from), Dtype::kF64}) {
      for (std::int64_t rows : {0, 1, 33, 1000}) {
        for (double beta : {0.0, 1.0, 0.5}) {
          constexpr std::int64_t kColumns = 131;
          Buffer x = random_buffer(from, {rows, kColumns}, 1);
          Buffer old = beta == 0 ? Buffer(to, {kColumns}) : random_buffer(to, {kColumns}, 2);
          std::vector<double> values = x.values(), want(kColumns), before = old.values();
          for (std::size_t j = 0; j < kColumns; ++j) want[j] = beta == 0 ? 0 : beta * before[j];
          for (std::size_t i = 0; i < values.size(); ++i) want[i % kColumns] += values[i];
          double sum_error = epsilon_of(accumulate_dtype(to)) * (8 + static_cast<double>(rows) / 8);
          on_every_level([&](const Kernels& kernels, const Stream& stream) {
            Buffer out = old;
            kernels.elementwise.column_sum(stream, x.view(), beta, out.view());
            expect_near(out.values(), want, 2 * epsilon_of(to) + sum_error);
            return out.bits();
          });
        }
      }
    }
  }
}
}  // namespace
}  // namespace bev
