// Cases that the rows of tests/ops do not cover: in-place outputs, gradient accumulation factors,
// precision.
#include "kernels/norm.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/backend_cuda/family.h"

namespace bev::cuda_test {
namespace {

struct NormCase {
  std::int64_t rows, columns;
  bool centred = false, bias = false;
  double offset = 0;
};

class CudaNorm : public CudaRig {
 protected:
  NormForwardArgs forward_args(const NormCase& item, Tensor Twin::*side) {
    return {.x = (x.*side).view(),
            .residual = {},
            .sum = {},
            .y = (y.*side).view(),
            .weight = (weight.*side).view(),
            .bias = item.bias ? (bias.*side).view() : View{},
            .mean = item.centred ? (mean.*side).view() : View{},
            .rstd = (rstd.*side).view(),
            .offset = item.offset};
  }
  void make(const NormCase& item, Dtype dtype) {
    x = random(dtype, {item.rows, item.columns}, 3);
    y = poisoned(dtype, {item.rows, item.columns});
    weight = random(dtype, {item.columns});
    bias = random(dtype, {item.columns});
    mean = poisoned(Dtype::kF32, {item.rows});
    rstd = poisoned(Dtype::kF32, {item.rows});
  }
  Twin x, y, weight, bias, mean, rstd;
};

// A mean far from 0: the variance must be computed from centred values.
TEST_F(CudaNorm, LayerNormKeepsDigitsOfShiftedRows) {
  const NormCase item{33, 2048, true, true};
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

TEST_F(CudaNorm, BackwardMayWriteOverDyOrDsumAndAddsAnyPartOfTheOldGradient) {
  for (const NormCase& item : {NormCase{3, 7, true, true},
                               {37, 264, false, false, 1},
                               {513, 4096, false, true},
                               {20, 8192, true, true, 1},
                               {2, 70000, true, true}}) {
    for (Dtype dtype : kModelDtypes) {
      for (bool over_dsum : {false, true}) {
        for (Dtype gradient : {Dtype::kF32, Dtype::kBf16}) {
          SCOPED_TRACE(concat(item.rows, " x ", item.columns, " ", name_of(dtype), " over ",
                              over_dsum ? "dsum" : "dy", " into ", name_of(gradient)));
          make(item, dtype);
          cpu().norm.forward(cpu_stream(), forward_args(item, &Twin::exact));
          cuda().norm.forward(cuda_stream(), forward_args(item, &Twin::device));
          Twin dy = random(dtype, {item.rows, item.columns});
          Twin dsum = random(dtype, {item.rows, item.columns});
          Twin& dx = over_dsum ? dsum : dy;
          Twin dweight = random(gradient, {item.columns}), dbias = random(gradient, {item.columns});
          auto args = [&](Tensor Twin::*side) {
            return NormBackwardArgs{.dy = (dy.*side).view(),
                                    .s = (x.*side).view(),
                                    .dsum = over_dsum ? (dsum.*side).view() : View{},
                                    .weight = (weight.*side).view(),
                                    .mean = item.centred ? (mean.*side).view() : View{},
                                    .rstd = (rstd.*side).view(),
                                    .dx = (dx.*side).view(),
                                    .dweight = (dweight.*side).view(),
                                    .dbias = item.bias ? (dbias.*side).view() : View{},
                                    .beta = 0.5,
                                    .offset = item.offset};
          };
          cpu().norm.backward(cpu_stream(), args(&Twin::exact));
          cuda().norm.backward(cuda_stream(), args(&Twin::device));
          EXPECT_LT(error(dx), 3 * tolerance(dtype));
          const double sums = gradient == Dtype::kF32 ? 1e-5 : tolerance(gradient);
          EXPECT_LT(error(dweight), sums);
          if (item.bias) {
            EXPECT_LT(error(dbias), sums);
          }
        }
      }
    }
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

}  // namespace
}  // namespace bev::cuda_test
