// Grouped GEMM of experts: results are bitwise those of single GEMMs.
#include <gtest/gtest.h>

#include "kernels/gemm.h"
#include "kernels/moe.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"
#include "tests/backend_cpu/kernel_fixture.h"

namespace bev {
namespace {
using namespace kernel_test;

// One expert without rows, one with few, others with more, and rows that belong to no expert.
const std::vector<std::int32_t> kOffsets = {0, 40, 40, 43, 640, 700};
constexpr std::int64_t kExperts = 5, kRows = 710, kOut = 160, kIn = 75;

View of_expert(const View& w, std::int64_t e) {
  return w.rows(e, e + 1).reshape({w.shape[1], w.shape[2]});
}

class Grouped : public testing::TestWithParam<Dtype> {
 protected:
  Buffer x = random_buffer(GetParam(), {kRows, kIn}, 1);
  Buffer w = random_buffer(GetParam(), {kExperts, kOut, kIn}, 2);
  Buffer y = random_buffer(GetParam(), {kRows, kOut}, 3);
  Buffer bias = random_buffer(GetParam(), {kExperts, kOut}, 4);

  template <class Body>
  static void for_experts(const Body& body) {
    for (std::int64_t e = 0; e < kExperts; ++e) {
      const auto i = static_cast<std::size_t>(e);
      body(e, kOffsets[i], kOffsets[i + 1]);
    }
  }
  static void clear_from(const View& out, std::int64_t row) {
    const View rest = out.rows(row, out.shape[0]);
    std::memset(rest.data, 0, rest.bytes());
  }
};

TEST_P(Grouped, ForwardHasTheBitsOfSingleProducts) {
  on_every_level([&](const Kernels& kernels, const Stream& stream) {
    Buffer got(GetParam(), {kRows, kOut}), want = got;
    kernels.moe.grouped_gemm(stream, {.x = x.view(),
                                      .w = w.view(),
                                      .y = got.view(),
                                      .bias = bias.view(),
                                      .offsets = kOffsets.data()});
    for_experts([&](std::int64_t e, std::int64_t begin, std::int64_t end) {
      kernels.gemm.gemm(stream, {.a = x.view().rows(begin, end),
                                 .b = of_expert(w.view(), e),
                                 .c = want.view().rows(begin, end),
                                 .transpose_b = true,
                                 .bias = bias.view().rows(e, e + 1).flat()});
    });
    clear_from(want.view(), kOffsets.back());
    EXPECT_TRUE(got.guards_intact());
    EXPECT_TRUE(got.bits() == want.bits());
    return got.bits();
  });
}

TEST_P(Grouped, InputGradientHasTheBitsOfSingleProducts) {
  on_every_level([&](const Kernels& kernels, const Stream& stream) {
    Buffer got(GetParam(), {kRows, kIn}), want = got;
    kernels.moe.grouped_dgrad(
        stream, {.x = got.view(), .w = w.view(), .y = y.view(), .offsets = kOffsets.data()});
    for_experts([&](std::int64_t e, std::int64_t begin, std::int64_t end) {
      kernels.gemm.gemm(stream, {.a = y.view().rows(begin, end),
                                 .b = of_expert(w.view(), e),
                                 .c = want.view().rows(begin, end)});
    });
    clear_from(want.view(), kOffsets.back());
    EXPECT_TRUE(got.guards_intact());
    EXPECT_TRUE(got.bits() == want.bits());
    return got.bits();
  });
}

TEST_P(Grouped, WeightGradientHasTheBitsOfSingleProducts) {
  const Dtype wide = accumulate_dtype(GetParam());
  for (double beta : {0.0, 1.0}) {
    on_every_level([&](const Kernels& kernels, const Stream& stream) {
      Buffer got = random_buffer(wide, {kExperts, kOut, kIn}, 5), want = got;
      kernels.moe.grouped_wgrad(stream, {.x = x.view(),
                                         .w = got.view(),
                                         .y = y.view(),
                                         .offsets = kOffsets.data(),
                                         .beta = beta});
      for_experts([&](std::int64_t e, std::int64_t begin, std::int64_t end) {
        kernels.gemm.gemm(stream, {.a = y.view().rows(begin, end),
                                   .b = x.view().rows(begin, end),
                                   .c = of_expert(want.view(), e),
                                   .transpose_a = true,
                                   .beta = beta});
      });
      EXPECT_TRUE(got.guards_intact());
      EXPECT_TRUE(got.bits() == want.bits());
      return got.bits();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Grouped, testing::ValuesIn(kFloats),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// Large enough for non-temporal stores, with rows that are and are not aligned to cache lines. Each
// element is a product of two integers.
TEST(GroupedWeight, LargeGradientsAreWholeWhereverTheirRowsBegin) {
  constexpr std::int64_t kOutputs = 2100;
  const std::vector<std::int32_t> offsets = {0, 1, 2, 3, 4};
  for (std::int64_t inputs : {512, 520}) {
    Arena arena(make_host_memory());
    Tensor x(arena, Dtype::kBf16, {4, inputs}, "x"), y(arena, Dtype::kBf16, {4, kOutputs}, "y");
    Tensor w(arena, Dtype::kF32, {4, kOutputs, inputs}, "w");
    const auto x_at = [](std::int64_t e, std::int64_t i) {
      return static_cast<float>((e + i) % 7);
    };
    const auto y_at = [](std::int64_t e, std::int64_t o) { return static_cast<float>(o % 11 - e); };
    for (std::int64_t e = 0; e < 4; ++e) {
      for (std::int64_t i = 0; i < inputs; ++i) x.as<Bf16>()[e * inputs + i] = Bf16(x_at(e, i));
      for (std::int64_t o = 0; o < kOutputs; ++o) y.as<Bf16>()[e * kOutputs + o] = Bf16(y_at(e, o));
    }
    ThreadPool pool(2);
    cpu_kernels().moe.grouped_wgrad({.pool = &pool},
                                    {.x = x, .w = w, .y = y, .offsets = offsets.data()});
    std::int64_t wrong = 0;
    for (std::int64_t e = 0; e < 4; ++e) {
      for (std::int64_t o = 0; o < kOutputs; ++o) {
        for (std::int64_t i = 0; i < inputs; ++i) {
          const float got = w.as<float>()[(e * kOutputs + o) * inputs + i];
          wrong += got == y_at(e, o) * x_at(e, i) ? 0 : 1;
        }
      }
    }
    EXPECT_EQ(wrong, 0) << inputs << " inputs";
  }
}

}  // namespace
}  // namespace bev
