// Kernels of the exact tables that work on rows: a row alone has the bits it has in a batch.
#include <gtest/gtest.h>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/loss.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "tests/backend_cpu/kernel_fixture.h"

namespace bev {
namespace {
using namespace kernel_test;

constexpr std::int64_t kRows = 67;

// Calls body(kernels, stream, begin, end), which returns the bits of rows [begin, end) computed in
// one call, for the whole and for parts of it, on every level.
template <class Body>
void expect_rows_alike(const Body& body) {
  for (CpuLevel level : levels()) {
    SCOPED_TRACE(testing::Message() << "level " << static_cast<int>(level));
    const Kernels& kernels = cpu_exact_kernels(level);
    ThreadPool one(1), three(3);
    const std::string whole = body(kernels, Stream{.pool = &one}, 0, kRows);
    ASSERT_EQ(whole.size() % kRows, 0u);
    ASSERT_GT(whole.size(), 0u);
    const std::size_t bytes = whole.size() / kRows;
    for (std::int64_t step : {1, 2, 16, 33}) {
      for (std::int64_t begin = 0; begin < kRows; begin += step) {
        const std::int64_t end = std::min(kRows, begin + step);
        EXPECT_TRUE(body(kernels, Stream{.pool = &three}, begin, end) ==
                    whole.substr(static_cast<std::size_t>(begin) * bytes,
                                 static_cast<std::size_t>(end - begin) * bytes))
            << "rows " << begin << " to " << end;
      }
    }
  }
}

class ExactRows : public testing::TestWithParam<Dtype> {
 protected:
  Dtype dtype = GetParam(), wide = accumulate_dtype(GetParam());
};

TEST_P(ExactRows, Norms) {
  for (std::int64_t columns : {37, 512}) {
    for (bool centred : {false, true}) {
      Buffer x = random_buffer(dtype, {kRows, columns}, 1);
      Buffer residual = random_buffer(dtype, {kRows, columns}, 2);
      Buffer weight = random_buffer(dtype, {columns}, 3), bias = random_buffer(dtype, {columns}, 4);
      expect_rows_alike(
          [&](const Kernels& kernels, const Stream& stream, std::int64_t begin, std::int64_t end) {
            const std::int64_t rows = end - begin;
            Buffer y(dtype, {rows, columns}), sum = y, mean(wide, {rows}), rstd(wide, {rows});
            kernels.norm.forward(stream, {.x = x.view().rows(begin, end),
                                          .residual = residual.view().rows(begin, end),
                                          .sum = sum.view(),
                                          .y = y.view(),
                                          .weight = weight.view(),
                                          .bias = centred ? bias.view() : View(),
                                          .mean = centred ? mean.view() : View(),
                                          .rstd = rstd.view()});
            return y.bits();
          });
    }
  }
  Buffer x = random_buffer(dtype, {kRows, 8 * 24}, 1);
  Buffer q_weight = random_buffer(dtype, {24}, 2), k_weight = random_buffer(dtype, {24}, 3);
  expect_rows_alike(
      [&](const Kernels& kernels, const Stream& stream, std::int64_t begin, std::int64_t end) {
        Buffer y(dtype, {end - begin, 8 * 24}), rstd(wide, {end - begin, 6});
        kernels.norm.head_forward(stream, {.x = x.view().rows(begin, end),
                                           .y = y.view(),
                                           .q_weight = q_weight.view(),
                                           .k_weight = k_weight.view(),
                                           .rstd = rstd.view(),
                                           .q_heads = 4,
                                           .kv_heads = 2,
                                           .head_size = 24});
        return y.bits();
      });
}

TEST_P(ExactRows, Activations) {
  Buffer x = random_buffer(dtype, {kRows, 74}, 1, 6);
  for (Activation kind : {Activation::kGelu, Activation::kGeluTanh, Activation::kSilu,
                          Activation::kRelu, Activation::kSquaredRelu, Activation::kQuickGelu}) {
    for (bool gated : {false, true}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(kind) << " gated " << gated);
      expect_rows_alike([&](const Kernels& kernels, const Stream& stream, std::int64_t begin,
                            std::int64_t end) {
        Buffer y(dtype, {end - begin, gated ? 37 : 74});
        kernels.activation.forward(
            stream, {.x = x.view().rows(begin, end), .y = y.view(), .kind = kind, .gated = gated});
        return y.bits();
      });
    }
  }
}

TEST_P(ExactRows, Rope) {
  Buffer x = random_buffer(dtype, {kRows, 3 * 40}, 1);
  std::vector<double> frequencies;
  for (int i = 0; i < 15; ++i) frequencies.push_back(std::pow(1e4, -i / 15.0));
  std::vector<std::int32_t> positions;
  for (std::int64_t t = 0; t < kRows; ++t) positions.push_back(static_cast<std::int32_t>(t * 31));
  for (bool interleaved : {false, true}) {
    expect_rows_alike(
        [&](const Kernels& kernels, const Stream& stream, std::int64_t begin, std::int64_t end) {
          Buffer table(wide, {end - begin, 30});
          kernels.rope.table(stream, {.positions = positions.data() + begin,
                                      .frequencies = frequencies,
                                      .cos_sin = table.view()});
          Buffer all = x;
          const View rows = all.view().rows(begin, end);
          kernels.rope.apply(stream, {.x = rows,
                                      .cos_sin = table.view(),
                                      .heads = 2,
                                      .head_size = 40,
                                      .begin = 10,
                                      .interleaved = interleaved});
          return std::string(static_cast<const char*>(rows.data), rows.bytes());
        });
  }
}

TEST_P(ExactRows, EmbeddingsSumsAndUnpermute) {
  Buffer weight = random_buffer(dtype, {20, 45}, 1), other = random_buffer(dtype, {kRows, 45}, 2);
  Buffer rows = random_buffer(dtype, {2 * kRows, 45}, 3);
  std::vector<std::int32_t> index, place;
  for (std::int64_t t = 0; t < 2 * kRows; ++t) {
    index.push_back(static_cast<std::int32_t>(t * 7 % 20));
    place.push_back(static_cast<std::int32_t>(2 * kRows - 1 - t));
  }
  expect_rows_alike([&](const Kernels& kernels, const Stream& stream, std::int64_t begin,
                        std::int64_t end) {
    Buffer x(dtype, {end - begin, 45}), y = x;
    kernels.embedding.forward(
        stream,
        {.index = index.data() + begin, .weight = weight.view(), .out = x.view(), .scale = 1.7});
    kernels.elementwise.add(stream, x.view(), other.view().rows(begin, end), x.view());
    kernels.moe.unpermute_rows(
        stream, {.rows = rows.view(), .y = y.view(), .place = place.data() + 2 * begin, .topk = 2});
    kernels.elementwise.add(stream, x.view(), y.view(), x.view());
    return x.bits();
  });
}

TEST_P(ExactRows, Sinks) {
  Buffer sinks = random_buffer(dtype, {3}, 1), x = random_buffer(dtype, {kRows, 3 * 21}, 2);
  Buffer scores = random_buffer(wide, {kRows, 3}, 3);
  expect_rows_alike(
      [&](const Kernels& kernels, const Stream& stream, std::int64_t begin, std::int64_t end) {
        Buffer out = x, lse = scores;
        const View rows = out.view().rows(begin, end);
        kernels.attention.add_sinks(stream, {sinks.view(), rows, lse.view().rows(begin, end)});
        return std::string(static_cast<const char*>(rows.data), rows.bytes());
      });
}

INSTANTIATE_TEST_SUITE_P(Cpu, ExactRows, testing::ValuesIn(kFloats),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(ExactRouter, ATokensExpertsDoNotDependOnTheBatch) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kF64}) {
    for (RouterScore score :
         {RouterScore::kSoftmax, RouterScore::kSigmoid, RouterScore::kSqrtSoftplus}) {
      Buffer logits = random_buffer(dtype, {kRows, 24}, 1, 3), bias = random_buffer(dtype, {24}, 2);
      RoutingRule rule{.topk = 4, .score = score, .pre_softmax = true, .scaling = 2.5};
      expect_rows_alike([&](const Kernels& kernels, const Stream& stream, std::int64_t begin,
                            std::int64_t end) {
        std::vector<std::int32_t> experts(static_cast<std::size_t>(4 * (end - begin)));
        Buffer probs(dtype, {end - begin, 4});
        kernels.router.route(stream, {.logits = logits.view().rows(begin, end),
                                      .bias = bias.view(),
                                      .experts = {experts.data(), Dtype::kI32, {end - begin, 4}},
                                      .probs = probs.view(),
                                      .rule = rule});
        std::string bits;
        const std::string all = probs.bits();
        for (std::size_t t = 0; t < experts.size() / 4; ++t) {
          bits.append(reinterpret_cast<const char*>(experts.data() + 4 * t), 16);
          bits += all.substr(t * 4 * size_of(dtype), 4 * size_of(dtype));
        }
        return bits;
      });
    }
  }
}

// In one pass over the whole vocabulary and in three; with the gradient and without.
TEST(ExactLoss, ATokensLossDependsNeitherOnTheBatchNorOnThePasses) {
  std::vector<std::int32_t> targets;
  for (std::int64_t t = 0; t < kRows; ++t)
    targets.push_back(static_cast<std::int32_t>(t * 13 % 301));
  for (Dtype dtype : {Dtype::kF32, Dtype::kF64}) {
    for (double softcap : {0.0, 15.0}) {
      Buffer logits = random_buffer(dtype, {kRows, 301}, 1, 20), ones(dtype, {kRows});
      for (std::size_t i = 0; i < kRows; ++i) ones.set(i, 1);
      std::vector<std::string> first;
      for (int way = 0; way < 4; ++way) {
        const bool with_gradient = way % 2 == 1, one_pass = way < 2;
        std::size_t level = 0;
        expect_rows_alike([&](const Kernels& kernels, const Stream& stream, std::int64_t begin,
                              std::int64_t end) {
          const std::int64_t rows = end - begin;
          Buffer z = logits, loss(dtype, {rows}), most(dtype, {rows}), stats(dtype, {2, rows});
          const LossChunk chunk{.logits = z.view().rows(begin, end),
                                .targets = targets.data() + begin,
                                .logit_scale = 0.7,
                                .softcap = softcap};
          const View weights = ones.view().rows(begin, end);
          if (one_pass) {
            kernels.loss.whole(stream, {.chunk = chunk,
                                        .weights = weights,
                                        .token_loss = loss.view(),
                                        .with_gradient = with_gradient});
          } else {
            kernels.loss.row_max(stream, {chunk, most.view()});
            kernels.loss.row_sum(stream, {chunk, most.view(), stats.view()});
            kernels.loss.gradient(stream, {.chunk = chunk,
                                           .row_max = most.view(),
                                           .stats = stats.view(),
                                           .weights = weights,
                                           .token_loss = loss.view(),
                                           .with_gradient = with_gradient});
          }
          if (rows == kRows && way == 0) first.push_back(loss.bits());
          if (rows == kRows) {
            EXPECT_TRUE(loss.bits() == first[level++]) << "way " << way;
          }
          return loss.bits();
        });
      }
    }
  }
}

}  // namespace
}  // namespace bev
