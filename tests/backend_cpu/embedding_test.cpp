#include "kernels/embedding.h"

#include <gtest/gtest.h>

#include "tests/backend_cpu/kernel_fixture.h"

namespace bev {
namespace {
using namespace kernel_test;

constexpr std::int64_t kRows = 11, kFirst = 20;

std::vector<std::int32_t> some_indices(std::int64_t count) {
  std::vector<std::int32_t> out;
  for (std::int64_t t = 0; t < count; ++t) {  // some before, some after this part of the vocabulary
    out.push_back(static_cast<std::int32_t>(18 + t * 5 % 15));
  }
  return out;
}

TEST(Embedding, ForwardReadsRowsAndZeros) {
  for (Dtype dtype : kFloats) {
    for (std::int64_t tokens : {0, 1, 700}) {
      for (bool accumulate : {false, true}) {
        constexpr std::int64_t kColumns = 37;
        std::vector<std::int32_t> index = some_indices(tokens);
        Buffer weight = random_buffer(dtype, {kRows, kColumns}, 1);
        Buffer old = accumulate ? random_buffer(dtype, {tokens, kColumns}, 2)
                                : Buffer(dtype, {tokens, kColumns});
        std::vector<double> table = weight.values(), want = old.values();
        for (std::size_t i = 0; i < want.size(); ++i) {
          std::int64_t row = index[i / kColumns] - kFirst;
          bool here = row >= 0 && row < kRows;
          double value =
              here ? 0.5 * table[static_cast<std::size_t>(row) * kColumns + i % kColumns] : 0;
          want[i] = accumulate ? want[i] + value : value;
        }
        on_every_level([&](const Kernels& kernels, const Stream& stream) {
          Buffer out = old;
          kernels.embedding.forward(stream, {.index = index.data(),
                                             .weight = weight.view(),
                                             .out = out.view(),
                                             .first_row = kFirst,
                                             .scale = 0.5,
                                             .accumulate = accumulate});
          expect_near(out.values(), want, 2 * epsilon_of(dtype));
          return out.bits();
        });
      }
    }
  }
}

TEST(Embedding, BackwardSumsRowsByIndex) {
  for (Dtype dtype : kFloats) {
    for (Dtype gradient : {accumulate_dtype(dtype), Dtype::kBf16, Dtype::kF64}) {
      for (double beta : {0.0, 1.0, 0.5}) {
        for (std::int64_t tokens : {0, 1, 700}) {
          constexpr std::int64_t kColumns = 150;
          std::vector<std::int32_t> index = some_indices(tokens);
          Buffer dy = random_buffer(dtype, {tokens, kColumns}, 1);
          Buffer old = beta == 0 ? Buffer(gradient, {kRows, kColumns})
                                 : random_buffer(gradient, {kRows, kColumns}, 2);
          std::vector<double> values = dy.values(), want = old.values();
          for (double& value : want) value = beta == 0 ? 0 : beta * value;
          for (std::size_t i = 0; i < values.size(); ++i) {
            std::int64_t row = index[i / kColumns] - kFirst;
            if (row < 0 || row >= kRows) continue;
            want[static_cast<std::size_t>(row) * kColumns + i % kColumns] += 3 * values[i];
          }
          on_every_level([&](const Kernels& kernels, const Stream& stream) {
            Buffer dweight = old;
            kernels.embedding.backward(stream, {.index = index.data(),
                                                .dy = dy.view(),
                                                .dweight = dweight.view(),
                                                .first_row = kFirst,
                                                .scale = 3,
                                                .beta = beta});
            // A bf16 gradient is summed in f32 and rounded once.
            const bool narrow = gradient == Dtype::kBf16;
            expect_near(dweight.values(), want, (narrow ? 2.01 : 400) * epsilon_of(gradient));
            EXPECT_TRUE(dweight.guards_intact());
            return dweight.bits();
          });
        }
      }
    }
  }
}
}  // namespace
}  // namespace bev
