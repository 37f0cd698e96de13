#include "kernels/gemm.h"

#include "base/divide.h"
#include "tests/backend_cuda/rig.h"

namespace bev::cuda_test {
namespace {

struct Product {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
  double alpha, beta;
  bool bias;
};

class CudaGemm : public CudaRig {
 protected:
  void compare(const Product& p, Dtype in, Dtype out) {
    Twin a = random(in, p.transpose_a ? Shape{p.k, p.m} : Shape{p.m, p.k});
    Twin b = random(in, p.transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n});
    Twin c = p.beta == 0 ? poisoned(out, {p.m, p.n}) : random(out, {p.m, p.n});
    Twin bias = random(in, {p.n});
    auto args = [&](Tensor Twin::*side) {
      return GemmArgs{(a.*side).view(), (b.*side).view(),
                      (c.*side).view(), p.transpose_a,
                      p.transpose_b,    p.alpha,
                      p.beta,           p.bias ? (bias.*side).view() : View{}};
    };
    const Twin before = c;
    cpu().gemm.gemm(cpu_stream(), args(&Twin::exact));
    for (const Kernels* kernels : tables()) {
      c.device = copy_of(before.device);
      kernels->gemm.gemm(cuda_stream(), args(&Twin::device));
      // Exact kernels add the terms of a sum one after the other, so rounding grows with their
      // number.
      const bool exact = kernels != &cuda();
      const double terms = exact ? 1 + static_cast<double>(p.k) / 1024 : 1;
      EXPECT_LT(error(c), terms * tolerance(out))
          << p.m << " x " << p.n << " x " << p.k << " " << name_of(in) << " to " << name_of(out)
          << (exact ? ", exact" : "");
    }
  }
  std::vector<const Kernels*> tables() { return {&cuda(), &cuda_exact_kernels()}; }
  Tensor copy_of(const Tensor& from) {
    Tensor to(device_arena(), from.dtype(), from.shape(), "test");
    cuda().cast(cuda_stream(), from, to);
    return to;
  }
};

const Product kProducts[] = {
    {64, 128, 96, false, true, 1, 0, false},
    {64, 128, 96, false, false, 1, 0, false},
    {64, 128, 96, true, false, 1, 1, false},
    {64, 128, 96, true, true, 0.5, -2, false},
    {200, 72, 333, false, true, 1, 0, true},
    {1, 4096, 512, false, true, 1, 0, false},
    {7, 13, 5, false, true, 1, 0, true},
    {1000, 1, 17, true, false, 2, 1, false},
    {512, 1024, 2048, false, true, 1, 0, true},
    {3, 3, 1, false, false, 1, 0, false},
    // Long dims that are not multiples of 8: in padded rows these GEMMs are split in two.
    {70, 1101, 96, false, true, 1, 0, true},
    {1101, 72, 130, true, false, 1, 1, false},
    {70, 72, 1101, false, false, 1, 0, true},
    {70, 72, 1101, false, false, 2, 0.5, false},
    {1101, 1205, 40, true, true, 0.5, -2, true},
    // Skinny GEMMs, which have their own kernel, and one row more than it takes.
    {1, 40, 2056, false, true, 1, 0, true},
    {8, 3072, 2048, false, true, 1, 0, false},
    {9, 250, 72, false, true, 0.5, 0, false},
    {16, 24, 8, false, true, 1, 0, true},
    {5, 17, 4096, false, true, 1, 0, false},
    {17, 64, 64, false, true, 1, 0, false},
    // Skinny: K split over 4, 2 and 1 warps; more tiles of the weight than warps on the device.
    {3, 1000, 1024, false, true, 1, 0, true},
    {7, 3000, 640, false, true, 1, 0, false},
    {1, 40000, 136, false, true, 1, 0, true},
};

TEST_F(CudaGemm, EveryLayoutAndDtype) {
  for (const Product& product : kProducts) {
    compare(product, Dtype::kF32, Dtype::kF32);
    for (Dtype in : {Dtype::kBf16, Dtype::kF16}) {
      compare(product, in, in);
      if (!product.bias) compare(product, in, Dtype::kF32);
    }
  }
}

// Padding after each row of a is NaN; that of c must stay unchanged.
TEST_F(CudaGemm, RowsMayBeLongerThanTheMatrix) {
  for (const Product& p : kProducts) {
    for (Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
      const std::int64_t rows = p.transpose_a ? p.k : p.m, columns = p.transpose_a ? p.m : p.k;
      const std::int64_t a_stride = round_up(columns + 8, 8), c_stride = round_up(p.n + 8, 8);
      Twin drawn = random(dtype, {rows, a_stride});
      std::vector<double> values(drawn.exact.as<double>(),
                                 drawn.exact.as<double>() + rows * a_stride);
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (static_cast<std::int64_t>(i) % a_stride >= columns) values[i] = std::nan("");
      }
      Twin a = twin(dtype, {rows, a_stride}, values), c = random(dtype, {p.m, c_stride});
      Twin b = random(dtype, p.transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n});
      Twin bias = random(dtype, {p.n});
      auto args = [&](Tensor Twin::*side) {
        return GemmArgs{(a.*side).view(), (b.*side).view(),
                        (c.*side).view(), p.transpose_a,
                        p.transpose_b,    p.alpha,
                        p.beta,           p.bias ? (bias.*side).view() : View{},
                        columns,          p.n};
      };
      const Twin before = c;
      cpu().gemm.gemm(cpu_stream(), args(&Twin::exact));
      for (const Kernels* kernels : tables()) {
        c.device = copy_of(before.device);
        kernels->gemm.gemm(cuda_stream(), args(&Twin::device));
        EXPECT_LT(error(c), tolerance(dtype))
            << p.m << " x " << p.n << " x " << p.k << " " << name_of(dtype)
            << (kernels == &cuda() ? "" : ", exact");
      }
    }
  }
}

TEST_F(CudaGemm, NothingToAddUpLeavesBetaTimesC) {
  Twin c = random(Dtype::kF32, {4, 6});
  Twin a = random(Dtype::kF32, {4, 0}), b = random(Dtype::kF32, {6, 0});
  cpu().gemm.gemm(cpu_stream(), {a.exact, b.exact, c.exact, false, true, 1, 0.5, {}});
  cuda().gemm.gemm(cuda_stream(), {a.device, b.device, c.device, false, true, 1, 0.5, {}});
  EXPECT_LT(error(c), 1e-7);
}

TEST_F(CudaGemm, TheSameBitsTwice) {
  Twin a = random(Dtype::kBf16, {300, 700}), b = random(Dtype::kBf16, {500, 700});
  std::vector<double> first;
  for (int i = 0; i < 3; ++i) {
    Twin c = poisoned(Dtype::kBf16, {300, 500});
    cuda().gemm.gemm(cuda_stream(), {a.device, b.device, c.device, false, true, 1, 0, {}});
    std::vector<double> got = download(c.device);
    if (i == 0) first = got;
    EXPECT_EQ(got, first);
  }
}

}  // namespace
}  // namespace bev::cuda_test
