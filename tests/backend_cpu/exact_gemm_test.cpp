// Exact GEMM and grouped GEMM: a row has the same bits whatever other rows the call has.
#include <gtest/gtest.h>

#include "kernels/gemm.h"
#include "kernels/latent.h"
#include "kernels/moe.h"
#include "kernels/quantize.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"
#include "tests/backend_cpu/kernel_fixture.h"

namespace bev {
namespace {
using namespace kernel_test;

constexpr std::int64_t kMost = 256;
const std::vector<std::int64_t> kRowCounts = {1, 2, 3, 15, 16, 17, 64, 129, 256};

std::string bits_of(const View& view) {
  return {static_cast<const char*>(view.data), view.bytes()};
}

// A linear forward y = x w^T + bias.
struct Linear {
  Dtype dtype, y_dtype;
  std::int64_t inputs, outputs;
  Buffer x = random_buffer(dtype, {kMost, inputs}, 1),
         w = random_buffer(dtype, {outputs, inputs}, 2);
  Buffer bias = random_buffer(dtype, {outputs}, 3);
  bool with_bias = true;
  PackedOperand* packed = nullptr;

  // Bits of y for rows [begin, end) of x, computed in one call. Rows of y may be padded.
  std::string forward(const Kernels& kernels, const Stream& stream, std::int64_t begin,
                      std::int64_t end, std::int64_t padding = 0) {
    Buffer y(y_dtype, {end - begin, outputs + padding});
    kernels.gemm.gemm(stream, {.a = x.view().rows(begin, end),
                               .b = w.view(),
                               .c = y.view(),
                               .transpose_b = true,
                               .bias = with_bias ? bias.view() : View(),
                               .c_columns = outputs,
                               .packed_b = packed});
    EXPECT_TRUE(y.guards_intact());
    std::string bits;
    for (std::int64_t row = 0; row < end - begin; ++row) {
      const auto bytes = static_cast<std::size_t>(outputs) * size_of(y_dtype);
      bits += bits_of(y.view().rows(row, row + 1)).substr(0, bytes);
    }
    return bits;
  }
  std::string some(const std::string& whole, std::int64_t begin, std::int64_t end) const {
    const auto row = static_cast<std::size_t>(outputs) * size_of(y_dtype);
    return whole.substr(static_cast<std::size_t>(begin) * row,
                        static_cast<std::size_t>(end - begin) * row);
  }
};

void expect_rows_alike(Linear& linear, const Kernels& kernels, const Stream& stream,
                       const std::string& whole) {
  for (std::int64_t m : kRowCounts) {
    EXPECT_TRUE(linear.forward(kernels, stream, 0, m) == linear.some(whole, 0, m))
        << "first " << m << " rows";
    EXPECT_TRUE(linear.forward(kernels, stream, kMost - m, kMost) ==
                linear.some(whole, kMost - m, kMost))
        << "last " << m << " rows";
  }
  EXPECT_TRUE(linear.forward(kernels, stream, 7, 40, 5) == linear.some(whole, 7, 40)) << "padded";
}

class ExactGemm : public testing::TestWithParam<std::pair<Dtype, Dtype>> {};

TEST_P(ExactGemm, RowsHaveTheSameBitsInAnyBatch) {
  for (auto [inputs, outputs] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {77, 401}, {512, 100}, {2048, 33}, {2500, 20}}) {
    for (CpuLevel level : levels()) {
      SCOPED_TRACE(testing::Message()
                   << inputs << " to " << outputs << ", level " << static_cast<int>(level));
      Linear linear{.dtype = GetParam().first,
                    .y_dtype = GetParam().second,
                    .inputs = inputs,
                    .outputs = outputs,
                    .with_bias = inputs != 512};
      const Kernels& kernels = cpu_exact_kernels(level);
      ThreadPool one(1), three(3);
      const std::string whole = linear.forward(kernels, {.pool = &one}, 0, kMost);
      EXPECT_TRUE(linear.forward(kernels, {.pool = &three}, 0, kMost) == whole) << "threads";
      expect_rows_alike(linear, kernels, {.pool = &three}, whole);
    }
  }
}

TEST_P(ExactGemm, MatchesTheFastProduct) {
  for (std::int64_t m : {1, 20, 256}) {
    Linear linear{
        .dtype = GetParam().first, .y_dtype = GetParam().second, .inputs = 600, .outputs = 70};
    for (CpuLevel level : levels()) {
      ThreadPool pool(2);
      const auto values = [&](const Kernels& kernels) {
        Buffer y(linear.y_dtype, {m, 70});
        kernels.gemm.gemm({.pool = &pool}, {.a = linear.x.view().rows(0, m),
                                            .b = linear.w.view(),
                                            .c = y.view(),
                                            .transpose_b = true,
                                            .alpha = 0.5,
                                            .bias = linear.bias.view()});
        return y.values();
      };
      expect_near(
          values(cpu_exact_kernels(level)), values(cpu_kernels(level)),
          4 * epsilon_of(linear.y_dtype) + 600 * epsilon_of(accumulate_dtype(linear.dtype)));
    }
  }
}

std::string name_of_types(const testing::TestParamInfo<std::pair<Dtype, Dtype>>& test) {
  return std::string(name_of(test.param.first)) + "_to_" + std::string(name_of(test.param.second));
}
INSTANTIATE_TEST_SUITE_P(
    Cpu, ExactGemm,
    testing::Values(std::pair(Dtype::kF64, Dtype::kF64), std::pair(Dtype::kF32, Dtype::kF32),
                    std::pair(Dtype::kBf16, Dtype::kBf16), std::pair(Dtype::kBf16, Dtype::kF32),
                    std::pair(Dtype::kF16, Dtype::kF16), std::pair(Dtype::kF16, Dtype::kF32)),
    name_of_types);

TEST(ExactGemm, KeptPanelsGiveTheSameBits) {
  Arena arena(make_host_memory());
  ThreadPool pool(2);
  const Stream stream{.pool = &pool};
  const Kernels& kernels = cpu_exact_kernels();
  for (std::int64_t inputs : {77, 2048, 2500}) {
    Linear linear{.dtype = Dtype::kBf16, .y_dtype = Dtype::kBf16, .inputs = inputs, .outputs = 50};
    const std::string whole = linear.forward(kernels, stream, 0, kMost);
    Buffer y(Dtype::kBf16, {kMost, 50});
    const auto bytes = static_cast<std::int64_t>(kernels.gemm.packed_bytes(
        {.a = linear.x.view(), .b = linear.w.view(), .c = y.view(), .transpose_b = true}));
    if (bytes == 0) GTEST_SKIP() << "this CPU multiplies bf16 as f32";
    Tensor memory(arena, Dtype::kU8, {bytes}, "packed");
    PackedOperand packed{.memory = static_cast<std::byte*>(memory.view().data)};
    linear.packed = &packed;
    expect_rows_alike(linear, kernels, stream, whole);
    EXPECT_TRUE(packed.made);
  }
}

class ExactExperts : public testing::TestWithParam<Dtype> {};

// Rows in the order of their experts.
TEST_P(ExactExperts, RowsHaveTheBitsOfSingleRows) {
  const std::vector<std::int32_t> offsets = {0, 40, 40, 43, 200, 240};
  const Dtype dtype = GetParam();
  for (std::int64_t inputs : {77, 512, 2100}) {
    Buffer x = random_buffer(dtype, {kMost, inputs}, 1);
    Buffer w = random_buffer(dtype, {5, 60, inputs}, 2), bias = random_buffer(dtype, {5, 60}, 3);
    for (CpuLevel level : levels()) {
      SCOPED_TRACE(testing::Message() << inputs << ", level " << static_cast<int>(level));
      const Kernels& kernels = cpu_exact_kernels(level);
      ThreadPool one(1), three(3);
      const auto grouped = [&](ThreadPool& pool, const View& rows,
                               const std::vector<std::int32_t>& ends) {
        Buffer y(dtype, {rows.shape[0], 60});
        kernels.moe.grouped_gemm(
            {.pool = &pool},
            {.x = rows, .w = w.view(), .y = y.view(), .bias = bias.view(), .offsets = ends.data()});
        EXPECT_TRUE(y.guards_intact());
        return y.bits();
      };
      const std::string whole = grouped(one, x.view(), offsets);
      EXPECT_TRUE(grouped(three, x.view(), offsets) == whole);
      const std::size_t row_bytes = 60 * size_of(dtype);
      for (std::size_t e = 0; e < 5; ++e) {
        std::vector<std::int32_t> ends(6, 0);
        std::fill(ends.begin() + static_cast<std::ptrdiff_t>(e) + 1, ends.end(), 1);
        for (std::int32_t row = offsets[e]; row < offsets[e + 1]; row += 7) {
          EXPECT_TRUE(grouped(one, x.view().rows(row, row + 1), ends) ==
                      whole.substr(static_cast<std::size_t>(row) * row_bytes, row_bytes))
              << "row " << row;
        }
      }
      EXPECT_EQ(whole.substr(240 * row_bytes), std::string(16 * row_bytes, '\0'));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ExactExperts, testing::ValuesIn(kFloats),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(ExactGemm, Fp8RowsWithScalesOfTheirOwnHaveTheSameBitsInAnyBatch) {
  ThreadPool pool(2);
  const Stream stream{.pool = &pool};
  constexpr std::int64_t kIn = 256, kOut = 128;
  const Kernels& kernels = cpu_exact_kernels();
  Buffer x = random_buffer(Dtype::kBf16, {64, kIn}, 1),
         w = random_buffer(Dtype::kBf16, {kOut, kIn}, 2);
  const auto forward = [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t rows = end - begin;
    const Shape x_scale_shape = scale_shape(ScaleBlock::kRun, rows, kIn);
    const Shape w_scale_shape = scale_shape(ScaleBlock::kSquare, kOut, kIn);
    std::vector<std::uint8_t> x_bytes(static_cast<std::size_t>(rows * kIn)), w_bytes(kOut * kIn);
    Buffer x_scales(Dtype::kF32, x_scale_shape), w_scales(Dtype::kF32, w_scale_shape);
    const View x_rows{x_bytes.data(), Dtype::kU8, {rows, kIn}}, x_view = x_scales.view();
    const View w_rows{w_bytes.data(), Dtype::kU8, {kOut, kIn}}, w_view = w_scales.view();
    QuantizeArgs of_x, of_w;
    of_x.x = x.view().rows(begin, end);
    of_x.block = ScaleBlock::kRun;
    of_x.rows = x_rows;
    of_x.row_scales = x_view;
    of_w.x = w.view();
    of_w.block = ScaleBlock::kSquare;
    of_w.rows = w_rows;
    of_w.row_scales = w_view;
    kernels.quantize.quantize(stream, of_x);
    kernels.quantize.quantize(stream, of_w);
    Buffer y(Dtype::kF32, {rows, kOut});
    ScaledGemmArgs args;
    args.a.payload = x_rows, args.a.scales = x_view, args.a.block = ScaleBlock::kRun;
    args.b.payload = w_rows, args.b.scales = w_view, args.b.block = ScaleBlock::kSquare;
    args.c = y.view();
    kernels.quantize.scaled_gemm(stream, args);
    return y.bits();
  };
  const std::string whole = forward(0, 64);
  constexpr std::size_t kRowBytes = kOut * 4;
  for (std::int64_t row = 0; row < 64; row += 5) {
    EXPECT_TRUE(forward(row, row + 1) ==
                whole.substr(static_cast<std::size_t>(row) * kRowBytes, kRowBytes));
  }
}

TEST(ExactTables, DecodeLatentAttentionFromExpandedKeys) {
  for (CpuLevel level : levels()) {
    EXPECT_TRUE(cpu_kernels(level).latent.absorb);
    EXPECT_FALSE(cpu_exact_kernels(level).latent.absorb);
    EXPECT_EQ(cpu_exact_kernels(level).latent.join, cpu_kernels(level).latent.join);
  }
}

}  // namespace
}  // namespace bev
