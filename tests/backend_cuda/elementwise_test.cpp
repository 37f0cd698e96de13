#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/backend_cuda/family.h"

namespace bev::cuda_test {
namespace {

class CudaElementwise : public CudaRig {};

const std::vector<std::int64_t> kSizes = {1, 7, 8, 1000, 100003};

TEST_F(CudaElementwise, FillWritesEveryElementAndNoOther) {
  for (Dtype dtype : kModelDtypes) {
    for (std::int64_t size : kSizes) {
      Twin x = random(dtype, {size + 2});
      Twin inner = part(x, 1, size + 1);
      cpu().fill(cpu_stream(), inner.exact, -1.5);
      cuda().fill(cuda_stream(), inner.device, -1.5);
      EXPECT_EQ(error(x), 0) << name_of(dtype) << " " << size;
    }
  }
  Twin numbers = words<std::int32_t>({1, 2, 3, 4, 5});
  cuda().fill(cuda_stream(), numbers.device, -7);
  std::vector<std::int32_t> back(5);
  cuda().device.fetch(cuda_stream(), numbers.device, back.data()).wait();
  EXPECT_EQ(back, std::vector<std::int32_t>(5, -7));
}

TEST_F(CudaElementwise, CastRoundsToNearestEven) {
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> values = {0,     1,    -1,   1.00390625, 1.01171875,
                                65504, 1e-7, 3e-8, infinity,   -infinity};
  for (int i = 0; i < 3000; ++i) values.push_back(std::ldexp(1 + i * 0.37, i % 30 - 20));
  for (Dtype from : kModelDtypes) {
    for (Dtype to : kModelDtypes) {
      for (std::int64_t first : {0, 1}) {
        const auto size = static_cast<std::int64_t>(values.size());
        Twin x = part(twin(from, {size}, values), first, size);
        Twin y = part(poisoned(to, {size}), first, size);
        Tensor same(host_arena(), to, {size - first}, "test");
        cpu().cast(cpu_stream(), x.exact, same);
        cpu().cast(cpu_stream(), same, y.exact);
        cuda().cast(cuda_stream(), x.device, y.device);
        EXPECT_EQ(error(y), 0) << name_of(from) << " to " << name_of(to) << " from " << first;
      }
    }
  }
}

TEST_F(CudaElementwise, AddAndItsAliases) {
  for (Dtype dtype : kModelDtypes) {
    for (std::int64_t size : kSizes) {
      Twin a = random(dtype, {size}), b = random(dtype, {size}), out = poisoned(dtype, {size});
      cpu().elementwise.add(cpu_stream(), a.exact, b.exact, out.exact);
      cuda().elementwise.add(cuda_stream(), a.device, b.device, out.device);
      EXPECT_LT(error(out), tolerance(dtype));
      cpu().elementwise.add(cpu_stream(), a.exact, b.exact, b.exact);
      cuda().elementwise.add(cuda_stream(), a.device, b.device, b.device);
      EXPECT_LT(error(b), tolerance(dtype));
    }
  }
}

TEST_F(CudaElementwise, AxpbyMixesDtypesAndDoesNotReadWithBetaZero) {
  for (Dtype from : kModelDtypes) {
    for (Dtype to : kModelDtypes) {
      for (double beta : {0.0, 1.0, -0.5}) {
        for (std::int64_t first : {0, 1}) {
          Twin x = part(random(from, {5003}), first, 5003);
          Twin y = part(beta == 0 ? poisoned(to, {5003}) : random(to, {5003}), first, 5003);
          cpu().elementwise.axpby(cpu_stream(), 0.75, x.exact, beta, y.exact);
          cuda().elementwise.axpby(cuda_stream(), 0.75, x.device, beta, y.device);
          EXPECT_LT(error(y), tolerance(to)) << name_of(from) << " " << name_of(to) << beta;
        }
      }
    }
  }
}

TEST_F(CudaElementwise, ScaleByANumberOnTheDevice) {
  Twin factor = twin(Dtype::kF32, {1}, {-0.3});
  for (Dtype dtype : kModelDtypes) {
    for (std::int64_t size : kSizes) {
      for (std::int64_t first : {0, 1}) {
        Twin x = part(random(dtype, {size + 1}), first, size), y = poisoned(dtype, {size - first});
        cpu().elementwise.scale(cpu_stream(), x.exact, factor.exact, y.exact);
        cuda().elementwise.scale(cuda_stream(), x.device, factor.device, y.device);
        EXPECT_LT(error(y), tolerance(dtype));
        cpu().elementwise.scale(cpu_stream(), x.exact, factor.exact, x.exact);
        cuda().elementwise.scale(cuda_stream(), x.device, factor.device, x.device);
        EXPECT_LT(error(x), tolerance(dtype));
      }
    }
  }
}

TEST_F(CudaElementwise, SegmentSum) {
  const std::vector<std::int64_t> lengths = {0, 0, 1, 7, 0, 1003, 40007, 256, 0};
  std::vector<std::int32_t> numbers;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    numbers.insert(numbers.end(), static_cast<std::size_t>(lengths[s]),
                   static_cast<std::int32_t>(s));
  }
  Twin segment = words(numbers);
  for (Dtype dtype : kModelDtypes) {
    Twin x = random(dtype, {std::ssize(numbers)}), sums = poisoned(dtype, {std::ssize(lengths)});
    cpu().elementwise.segment_sum(cpu_stream(),
                                  {x.exact, segment.exact.as<std::int32_t>(), sums.exact});
    cuda().elementwise.segment_sum(cuda_stream(),
                                   {x.device, segment.device.as<std::int32_t>(), sums.device});
    EXPECT_LT(error(sums), tolerance(dtype));
    Twin none = part(x, 0, 0), zeros = poisoned(dtype, {3});
    cuda().elementwise.segment_sum(cuda_stream(),
                                   {none.device, segment.device.as<std::int32_t>(), zeros.device});
    EXPECT_EQ(download(zeros.device), std::vector<double>(3, 0.0));
  }
}

TEST_F(CudaElementwise, AddRows) {
  for (Dtype dtype : kModelDtypes) {
    for (std::int64_t columns : {1, 7, 64, 4100}) {
      for (std::int64_t rows : {0, 1, 70, 3001}) {
        Twin x = random(dtype, {rows, columns}), row = random(dtype, {columns});
        cpu().elementwise.add_rows(cpu_stream(), x.exact, row.exact);
        cuda().elementwise.add_rows(cuda_stream(), x.device, row.device);
        EXPECT_LT(error(x), tolerance(dtype)) << rows << " x " << columns;
      }
    }
  }
  Twin tall = random(Dtype::kBf16, {70000, 8}), row = random(Dtype::kBf16, {8});
  cpu().elementwise.add_rows(cpu_stream(), tall.exact, row.exact);
  cuda().elementwise.add_rows(cuda_stream(), tall.device, row.device);
  EXPECT_LT(error(tall), tolerance(Dtype::kBf16));
}

TEST_F(CudaElementwise, CopyRowsOfAnyWidthAndStride) {
  for (Dtype dtype : kModelDtypes) {
    for (std::int64_t columns : {1, 3, 4, 24, 500}) {
      for (std::int64_t gap : {0, 1, 8}) {
        constexpr std::int64_t kRows = 19;
        const std::int64_t stride = columns + gap;
        Twin from = random(dtype, {kRows * stride}), to = random(dtype, {kRows * (stride + 2)});
        auto args = [&](const Tensor& src, const Tensor& dst) {
          return CopyRowsArgs{.src = src.view().data,
                              .dst = dst.view().address(1),
                              .dtype = src.dtype(),
                              .rows = kRows,
                              .columns = columns,
                              .src_stride = stride,
                              .dst_stride = stride + 1};
        };
        cpu().elementwise.copy_rows(cpu_stream(), args(from.exact, to.exact));
        cuda().elementwise.copy_rows(cuda_stream(), args(from.device, to.device));
        EXPECT_EQ(error(to), 0) << columns << " " << gap;
      }
    }
  }
}

TEST_F(CudaElementwise, FindsAnythingThatIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (Dtype dtype : kModelDtypes) {
    for (std::int64_t size : {1, 9, 5001}) {
      for (double bad : {0.0, infinity, -infinity, std::nan("")}) {
        for (std::int64_t at : {std::int64_t{0}, size - 1}) {
          std::vector<double> values(static_cast<std::size_t>(size), 60000);
          if (bad != 0) values[static_cast<std::size_t>(at)] = bad;
          Twin x = twin(dtype, {size}, values), flag = words<std::int32_t>({0});
          cuda().elementwise.find_nonfinite(cuda_stream(), x.device,
                                            flag.device.as<std::int32_t>());
          std::int32_t found = -1;
          cuda().device.fetch(cuda_stream(), flag.device, &found).wait();
          EXPECT_EQ(found, bad == 0 ? 0 : 1) << name_of(dtype) << " " << bad << " at " << at;
        }
      }
    }
  }
}

TEST_F(CudaElementwise, ColumnSum) {
  for (Dtype dtype : kModelDtypes) {
    for (Dtype to : {Dtype::kF32, Dtype::kBf16}) {
      for (std::int64_t columns : {1, 7, 64, 4096, 5001}) {
        for (std::int64_t rows : {0, 1, 33, 5000}) {
          if (rows * columns > 6'000'000) continue;
          for (double beta : {0.0, 1.0}) {
            Twin x = random(dtype, {rows, columns});
            Twin out = beta == 0 ? poisoned(to, {columns}) : random(to, {columns});
            cpu().elementwise.column_sum(cpu_stream(), x.exact, beta, out.exact);
            cuda().elementwise.column_sum(cuda_stream(), x.device, beta, out.device);
            EXPECT_LT(error(out), tolerance(to)) << concat(rows, " x ", columns, " beta ", beta);
          }
        }
      }
    }
  }
}

TEST_F(CudaElementwise, SumsHaveTheSameBitsEveryTime) {
  Twin x = random(Dtype::kBf16, {4099, 1000});
  std::vector<std::vector<double>> results;
  for (int i = 0; i < 3; ++i) {
    Twin out = poisoned(Dtype::kF32, {1000});
    cuda().elementwise.column_sum(cuda_stream(), x.device, 0, out.device);
    results.push_back(download(out.device));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST_F(CudaElementwise, DoubleTensorsAreRefused) {
  Tensor x(device_arena(), Dtype::kF64, {8}, "test");
  expect_device_error([&] { cuda().elementwise.add(cuda_stream(), x, x, x); });
}

}  // namespace
}  // namespace bev::cuda_test
