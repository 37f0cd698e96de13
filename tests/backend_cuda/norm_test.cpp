#include "kernels/norm.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/backend_cuda/family.h"

namespace bev::cuda_test {
namespace {

struct NormCase {
  std::int64_t rows, columns;
  bool centred = false, residual = false, bias = false;
  double offset = 0;
};

// Every width of a row of threads, widths that fill none of them, and rows that no register holds.
const std::vector<NormCase> kCases = {{1, 1},
                                      {3, 7, true, true, true},
                                      {700, 64},
                                      {37, 256, true, false, true},
                                      {37, 264, false, true, false, 1},
                                      {9, 512, true, true, false},
                                      {300, 768, true, true, true},
                                      {65, 1001, true, true, true},
                                      {300, 1024, false, true},
                                      {513, 4096, false, true},
                                      {20, 5120, true, false, true},
                                      {20, 8192, true, true, true, 1},
                                      {5, 12288, true, true, true},
                                      {5, 16384, false, true},
                                      {3, 40000, true, true, true},
                                      {2, 70000, true, false, true}};

class CudaNorm : public CudaRig {
 protected:
  NormForwardArgs forward_args(const NormCase& item, Tensor Twin::*side) {
    return {.x = (x.*side).view(),
            .residual = item.residual ? (residual.*side).view() : View{},
            .sum = item.residual ? (sum.*side).view() : View{},
            .y = (y.*side).view(),
            .weight = (weight.*side).view(),
            .bias = item.bias ? (bias.*side).view() : View{},
            .mean = item.centred ? (mean.*side).view() : View{},
            .rstd = (rstd.*side).view(),
            .offset = item.offset};
  }
  void make(const NormCase& item, Dtype dtype) {
    x = random(dtype, {item.rows, item.columns}, 3);
    residual = random(dtype, {item.rows, item.columns}, 3);
    sum = poisoned(dtype, {item.rows, item.columns});
    y = poisoned(dtype, {item.rows, item.columns});
    weight = random(dtype, {item.columns});
    bias = random(dtype, {item.columns});
    mean = poisoned(Dtype::kF32, {item.rows});
    rstd = poisoned(Dtype::kF32, {item.rows});
  }
  Twin x, residual, sum, y, weight, bias, mean, rstd;
};

TEST_F(CudaNorm, ForwardMatchesTheCpu) {
  for (const NormCase& item : kCases) {
    for (Dtype dtype : kModelDtypes) {
      SCOPED_TRACE(concat(item.rows, " x ", item.columns, " ", name_of(dtype)));
      make(item, dtype);
      cpu().norm.forward(cpu_stream(), forward_args(item, &Twin::exact));
      cuda().norm.forward(cuda_stream(), forward_args(item, &Twin::device));
      EXPECT_LT(error(y), tolerance(dtype));
      // The device takes its statistics from the rounded sum.
      const double statistics = item.residual ? tolerance(dtype) : 2e-6;
      if (item.residual) {
        EXPECT_LT(error(sum), tolerance(dtype));
      }
      if (item.centred && item.columns > 1) {
        EXPECT_LT(error(mean), 20 * statistics);
      }
      EXPECT_LT(error(rstd), statistics);
    }
  }
}

// A mean far from 0: the variance must come from centred values.
TEST_F(CudaNorm, LayerNormKeepsDigitsOfShiftedRows) {
  const NormCase item{33, 2048, true, false, true};
  make(item, Dtype::kF32);
  std::vector<double> values;
  for (std::int64_t i = 0; i < item.rows * item.columns; ++i) {
    values.push_back(1000 + x.exact.as<double>()[i]);
  }
  x = twin(Dtype::kF32, {item.rows, item.columns}, values);
  cpu().norm.forward(cpu_stream(), forward_args(item, &Twin::exact));
  cuda().norm.forward(cuda_stream(), forward_args(item, &Twin::device));
  EXPECT_LT(error(y), 5e-4);
}

enum class Over { kNothing, kDsum, kDy };

TEST_F(CudaNorm, BackwardMatchesTheCpu) {
  for (const NormCase& item : kCases) {
    for (Dtype dtype : kModelDtypes) {
      for (Over over : {Over::kNothing, Over::kDsum, Over::kDy}) {
        for (Dtype gradient : {Dtype::kF32, Dtype::kBf16}) {
          const double beta = over == Over::kDy ? 0.5 : 0;
          SCOPED_TRACE(concat(item.rows, " x ", item.columns, " ", name_of(dtype), " over ",
                              static_cast<int>(over), " into ", name_of(gradient)));
          make(item, dtype);
          NormCase plain = item;
          plain.residual = false;
          cpu().norm.forward(cpu_stream(), forward_args(plain, &Twin::exact));
          cuda().norm.forward(cuda_stream(), forward_args(plain, &Twin::device));
          Twin dy = random(dtype, {item.rows, item.columns});
          Twin dsum = random(dtype, {item.rows, item.columns});
          Twin own = poisoned(dtype, {item.rows, item.columns});
          Twin& dx = over == Over::kNothing ? own : over == Over::kDsum ? dsum : dy;
          auto start = [&] {
            return beta == 0 ? poisoned(gradient, {item.columns})
                             : random(gradient, {item.columns});
          };
          Twin dweight = start(), dbias = start();
          auto args = [&](Tensor Twin::*side) {
            return NormBackwardArgs{.dy = (dy.*side).view(),
                                    .s = (x.*side).view(),
                                    .dsum = over == Over::kDsum ? (dsum.*side).view() : View{},
                                    .weight = (weight.*side).view(),
                                    .mean = item.centred ? (mean.*side).view() : View{},
                                    .rstd = (rstd.*side).view(),
                                    .dx = (dx.*side).view(),
                                    .dweight = (dweight.*side).view(),
                                    .dbias = item.bias ? (dbias.*side).view() : View{},
                                    .beta = beta,
                                    .offset = item.offset};
          };
          cpu().norm.backward(cpu_stream(), args(&Twin::exact));
          cuda().norm.backward(cuda_stream(), args(&Twin::device));
          if (item.columns > 1) {
            EXPECT_LT(error(dx), 3 * tolerance(dtype));
          }
          const double sums = gradient == Dtype::kF32 ? 1e-5 : tolerance(gradient);
          if (item.columns > 1) {
            EXPECT_LT(error(dweight), sums);
          }
          if (item.bias) {
            EXPECT_LT(error(dbias), sums);
          }
        }
      }
    }
  }
}

TEST_F(CudaNorm, GradientsOfWeightsAloneAndOfNone) {
  for (std::int64_t columns : {96, 101}) {
    const NormCase item{50, columns, true, false, true};
    make(item, Dtype::kBf16);
    cpu().norm.forward(cpu_stream(), forward_args(item, &Twin::exact));
    cuda().norm.forward(cuda_stream(), forward_args(item, &Twin::device));
    Twin dy = random(Dtype::kBf16, {50, columns}), dx = poisoned(Dtype::kBf16, {50, columns});
    Twin dweight = poisoned(Dtype::kF32, {columns});
    auto args = [&](Tensor Twin::*side, bool weights) {
      return NormBackwardArgs{.dy = (dy.*side).view(),
                              .s = (x.*side).view(),
                              .dsum = {},
                              .weight = (weight.*side).view(),
                              .mean = (mean.*side).view(),
                              .rstd = (rstd.*side).view(),
                              .dx = weights ? View{} : (dx.*side).view(),
                              .dweight = weights ? (dweight.*side).view() : View{},
                              .dbias = {}};
    };
    for (bool weights : {true, false}) {
      cpu().norm.backward(cpu_stream(), args(&Twin::exact, weights));
      cuda().norm.backward(cuda_stream(), args(&Twin::device, weights));
    }
    EXPECT_LT(error(dweight), 1e-5);
    EXPECT_LT(error(dx), 2 * tolerance(Dtype::kBf16));
  }
}

TEST_F(CudaNorm, NoRowsLeaveBetaTimesTheOldGradient) {
  Twin empty = random(Dtype::kBf16, {0, 64}), statistics = random(Dtype::kF32, {0});
  Twin weights = random(Dtype::kBf16, {64}), dweight = random(Dtype::kF32, {64});
  auto args = [&](Tensor Twin::*side) {
    return NormBackwardArgs{.dy = (empty.*side).view(),
                            .s = (empty.*side).view(),
                            .dsum = {},
                            .weight = (weights.*side).view(),
                            .mean = {},
                            .rstd = (statistics.*side).view(),
                            .dx = (empty.*side).view(),
                            .dweight = (dweight.*side).view(),
                            .dbias = {},
                            .beta = 0.5};
  };
  cpu().norm.backward(cpu_stream(), args(&Twin::exact));
  cuda().norm.backward(cuda_stream(), args(&Twin::device));
  EXPECT_LT(error(dweight), 1e-6);
}

struct HeadCase {
  std::int64_t tokens, q_heads, kv_heads, size;
};

class CudaHeadNorm : public CudaRig {};

TEST_F(CudaHeadNorm, ForwardAndBackwardMatchTheCpu) {
  const std::vector<HeadCase> cases = {{1, 1, 1, 64}, {33, 8, 2, 128},  {50, 4, 4, 256},
                                       {7, 3, 1, 32}, {300, 5, 1, 128}, {20, 6, 2, 80},
                                       {5, 2, 1, 33}, {5, 2, 2, 512}};
  for (const HeadCase& item : cases) {
    for (Dtype dtype : kModelDtypes) {
      for (bool in_place : {false, true}) {
        SCOPED_TRACE(concat(item.tokens, " tokens, head size ", item.size, " ", name_of(dtype),
                            in_place ? " in place" : ""));
        const std::int64_t width = (item.q_heads + 2 * item.kv_heads) * item.size;
        const std::int64_t normed = item.q_heads + item.kv_heads;
        Twin x = random(dtype, {item.tokens, width}, 2), y = poisoned(dtype, {item.tokens, width});
        Twin q_weight = random(dtype, {item.size}), k_weight = random(dtype, {item.size});
        Twin rstd = poisoned(Dtype::kF32, {item.tokens, normed});
        auto forward = [&](Tensor Twin::*side) {
          return HeadNormForwardArgs{.x = (x.*side).view(),
                                     .y = (y.*side).view(),
                                     .q_weight = (q_weight.*side).view(),
                                     .k_weight = (k_weight.*side).view(),
                                     .rstd = (rstd.*side).view(),
                                     .q_heads = item.q_heads,
                                     .kv_heads = item.kv_heads,
                                     .head_size = item.size,
                                     .offset = 1};
        };
        cpu().norm.head_forward(cpu_stream(), forward(&Twin::exact));
        cuda().norm.head_forward(cuda_stream(), forward(&Twin::device));
        EXPECT_LT(error(y), tolerance(dtype));
        EXPECT_LT(error(rstd), 2e-6);
        Twin dy = random(dtype, {item.tokens, width}), own = poisoned(dtype, {item.tokens, width});
        Twin& dx = in_place ? dy : own;
        Twin dq = poisoned(Dtype::kF32, {item.size}), dk = random(Dtype::kF32, {item.size});
        auto backward = [&](Tensor Twin::*side) {
          return HeadNormBackwardArgs{.dy = (dy.*side).view(),
                                      .x = (x.*side).view(),
                                      .dx = (dx.*side).view(),
                                      .q_weight = (q_weight.*side).view(),
                                      .k_weight = (k_weight.*side).view(),
                                      .rstd = (rstd.*side).view(),
                                      .dq_weight = (dq.*side).view(),
                                      .dk_weight = (dk.*side).view(),
                                      .q_beta = 0,
                                      .k_beta = 0.5,
                                      .q_heads = item.q_heads,
                                      .kv_heads = item.kv_heads,
                                      .head_size = item.size,
                                      .offset = 1};
        };
        cpu().norm.head_backward(cpu_stream(), backward(&Twin::exact));
        cuda().norm.head_backward(cuda_stream(), backward(&Twin::device));
        EXPECT_LT(error(dx), 2 * tolerance(dtype));
        EXPECT_LT(error(dq), 1e-5);
        EXPECT_LT(error(dk), 1e-5);
        if (!in_place) continue;
        y = x;  // the forward over its own input
        cpu().norm.head_forward(cpu_stream(), forward(&Twin::exact));
        cuda().norm.head_forward(cuda_stream(), forward(&Twin::device));
        EXPECT_LT(error(x), tolerance(dtype));
      }
    }
  }
}

}  // namespace
}  // namespace bev::cuda_test
