#include "kernels/embedding.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/backend_cuda/family.h"

namespace bev::cuda_test {
namespace {

constexpr std::int64_t kFirstRow = 50;

class CudaEmbedding : public CudaRig {
 protected:
  // Tokens for the vocabulary part [kFirstRow, kFirstRow + rows): some outside, some very frequent.
  std::vector<std::int32_t> tokens(std::int64_t count, std::int64_t rows) {
    std::vector<std::int32_t> out;
    for (std::int64_t t = 0; t < count; ++t) {
      const std::uint32_t word = philox({static_cast<std::uint32_t>(t), 1, 2, 3}, 11)[0];
      const auto far = static_cast<std::int64_t>(word % (2 * static_cast<std::uint32_t>(rows)));
      out.push_back(static_cast<std::int32_t>(t % 3 == 0 ? kFirstRow + rows / 2 : far));
    }
    return out;
  }
};

TEST_F(CudaEmbedding, ForwardMatchesTheCpu) {
  for (Dtype dtype : kModelDtypes) {
    for (std::int64_t columns : {1, 7, 64, 1032}) {
      for (bool accumulate : {false, true}) {
        for (std::int64_t count : {0, 1, 777}) {
          Twin index = words(tokens(count, 300)), weight = random(dtype, {300, columns});
          Twin out =
              accumulate ? random(dtype, {count, columns}) : poisoned(dtype, {count, columns});
          auto args = [&](Tensor Twin::*side) {
            return EmbeddingForwardArgs{.index = (index.*side).as<std::int32_t>(),
                                        .weight = (weight.*side).view(),
                                        .out = (out.*side).view(),
                                        .first_row = kFirstRow,
                                        .scale = 0.7,
                                        .accumulate = accumulate};
          };
          cpu().embedding.forward(cpu_stream(), args(&Twin::exact));
          cuda().embedding.forward(cuda_stream(), args(&Twin::device));
          EXPECT_LT(error(out), tolerance(dtype)) << concat(count, " x ", columns);
        }
      }
    }
  }
}

struct BackwardCase {
  std::int64_t tokens, rows, columns;
};

TEST_F(CudaEmbedding, BackwardMatchesTheCpu) {
  // Radix sorts of one, two and three digits; columns of one and of several tiles.
  const std::vector<BackwardCase> cases = {{0, 40, 16},     {1, 40, 16},       {1500, 40, 7},
                                           {5000, 300, 64}, {3000, 70000, 24}, {700, 300, 1032}};
  for (const BackwardCase& item : cases) {
    for (Dtype dtype : kModelDtypes) {
      for (Dtype gradient : {Dtype::kF32, Dtype::kBf16}) {
        for (double beta : {0.0, 1.0, 0.5}) {
          SCOPED_TRACE(concat(item.tokens, " tokens of ", item.rows, " x ", item.columns, " ",
                              name_of(dtype), " into ", name_of(gradient), " beta ", beta));
          std::vector<std::int32_t> ids = tokens(item.tokens, item.rows);
          Twin index = words(ids), dy = random(dtype, {item.tokens, item.columns});
          Twin dweight = beta == 0 ? poisoned(gradient, {item.rows, item.columns})
                                   : random(gradient, {item.rows, item.columns});
          auto args = [&](Tensor Twin::*side) {
            return EmbeddingBackwardArgs{.index = (index.*side).as<std::int32_t>(),
                                         .dy = (dy.*side).view(),
                                         .dweight = (dweight.*side).view(),
                                         .first_row = kFirstRow,
                                         .scale = 1.5,
                                         .beta = beta,
                                         .skip_index = ids.size() > 1 ? ids[1] : -1};
          };
          cpu().embedding.backward(cpu_stream(), args(&Twin::exact));
          cuda().embedding.backward(cuda_stream(), args(&Twin::device));
          EXPECT_LT(error(dweight), gradient == Dtype::kF32 ? 1e-5 : tolerance(gradient));
        }
      }
    }
  }
}

// In f32 the order of additions decides the last bits: it must be the order of tokens.
TEST_F(CudaEmbedding, AddsInTheOrderOfTokens) {
  constexpr std::int64_t kTokens = 2500, kColumns = 8;
  std::vector<std::int32_t> ids(kTokens, 3);
  std::vector<float> dy(kTokens * kColumns), want(kColumns, 0.0f);
  for (std::size_t i = 0; i < dy.size(); ++i) {
    dy[i] = static_cast<float>(i % 97) * 0.37f - 11.3f * static_cast<float>(i % 5);
  }
  for (std::size_t i = 0; i < dy.size(); ++i) want[i % kColumns] += dy[i];
  Twin index = words(ids), grads = words(dy);
  Tensor dweight(device_arena(), Dtype::kF32, {5, kColumns}, "test");
  cuda().embedding.backward(cuda_stream(), {.index = index.device.as<std::int32_t>(),
                                            .dy = grads.device.view().reshape({kTokens, kColumns}),
                                            .dweight = dweight.view()});
  std::vector<double> got = download(dweight);
  for (std::size_t j = 0; j < kColumns; ++j) {
    EXPECT_EQ(got[3 * kColumns + j], static_cast<double>(want[j])) << j;
    EXPECT_EQ(got[j], 0);
  }
}

}  // namespace
}  // namespace bev::cuda_test
