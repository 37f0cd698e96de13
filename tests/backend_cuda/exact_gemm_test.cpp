// Exact GEMMs: a row of the result has the same bits whatever number of rows is computed with it.
#include <gtest/gtest.h>

#include <cstring>

#include "autograd/quantize.h"
#include "base/text.h"
#include "kernels/gemm.h"
#include "kernels/moe.h"
#include "kernels/optim.h"
#include "kernels/quantize.h"
#include "tests/backend_cuda/family.h"

namespace bev::cuda_test {
namespace {

class CudaExact : public CudaRig {
 protected:
  const Kernels& exact() const { return cuda_exact_kernels(); }

  // Normal numbers, drawn on the device.
  Tensor noise(Dtype dtype, const Shape& shape) {
    Tensor out(device_arena(), dtype, shape, "test");
    cuda().optim.normal(cuda_stream(), {.x = out.view().flat(), .key = ++draws_});
    return out;
  }
  std::vector<std::byte> bytes_of(const View& view) {
    std::vector<std::byte> out(view.bytes());
    cuda().device.fetch(cuda_stream(), view, out.data()).wait();
    return out;
  }

  struct Linear {
    std::int64_t n, k;
    Dtype in, out;
    bool bias = false;
    std::int64_t padding = 0;  // of the rows of the result
  };
  std::vector<std::byte> rows_of(const Linear& item, const Tensor& x, const Tensor& w,
                                 const Tensor& bias) {
    Tensor y(device_arena(), item.out, {x.shape()[0], item.n + item.padding}, "test");
    cuda().fill(cuda_stream(), y, 0);
    exact().gemm.gemm(cuda_stream(), {.a = x,
                                      .b = w,
                                      .c = y,
                                      .transpose_b = true,
                                      .bias = item.bias ? bias.view() : View{},
                                      .c_columns = item.n});
    return bytes_of(y);
  }
  // Rows of the largest call, and those of smaller ones that begin elsewhere.
  void check(const Linear& item, const std::vector<std::int64_t>& counts) {
    SCOPED_TRACE(concat(item.n, " x ", item.k, " ", name_of(item.in), " to ", name_of(item.out),
                        item.bias ? ", bias" : "", ", padding ", item.padding));
    const std::int64_t most = counts.back();
    const Tensor x = noise(item.in, {most, item.k}), w = noise(item.in, {item.n, item.k});
    const Tensor bias = noise(item.in, {item.n});
    const std::vector<std::byte> all = rows_of(item, x, w, bias);
    const std::size_t row = all.size() / static_cast<std::size_t>(most);
    for (std::int64_t count : counts) {
      for (std::int64_t begin : {std::int64_t{0}, most - count}) {
        const std::vector<std::byte> some = rows_of(item, x.rows(begin, begin + count), w, bias);
        const std::byte* expected = all.data() + static_cast<std::size_t>(begin) * row;
        EXPECT_EQ(std::memcmp(some.data(), expected, some.size()), 0)
            << count << " rows from " << begin;
      }
    }
  }

 private:
  std::uint64_t draws_ = 0;
};

const std::vector<std::int64_t> kCounts = {1, 2, 8, 15, 16, 17, 32, 33, 64, 129, 256, 1000};

TEST_F(CudaExact, RowsOfTheGeometryOf1B) {
  for (Dtype in : {Dtype::kBf16, Dtype::kF16}) {
    check({2048, 2048, in, in}, kCounts);
    check({3072, 2048, in, in}, kCounts);
    check({16384, 2048, in, in}, kCounts);
    check({2048, 8192, in, in}, kCounts);
  }
  check({128256, 2048, Dtype::kBf16, Dtype::kF32}, {1, 16, 17, 64, 129});
}

TEST_F(CudaExact, RowsOfOtherLayouts) {
  for (Dtype in : {Dtype::kBf16, Dtype::kF16}) {
    check({2304, 768, in, in, true}, kCounts);
    check({3072, 640, in, Dtype::kF32, true, 64}, kCounts);
    check({1003, 512, in, in}, kCounts);  // rows that TMA cannot store
    check({1003, 512, in, Dtype::kF32, false, 5}, kCounts);
    check({1003, 512, in, in, false, 21}, kCounts);
    check({136, 77, in, in, true}, kCounts);  // rows that are not aligned
  }
  check({2048, 2048, Dtype::kF32, Dtype::kF32}, kCounts);
  check({515, 333, Dtype::kF32, Dtype::kF32, true}, kCounts);
  check({16384, 512, Dtype::kF32, Dtype::kF32}, {1, 16, 64, 129});
}

// A graph takes the same kernels, or the reference where nothing was measured before.
TEST_F(CudaExact, CapturedRowsAreThoseOfACall) {
  for (std::int64_t rows : {1, 16, 100}) {
    const Tensor x = noise(Dtype::kBf16, {rows, 1024}), w = noise(Dtype::kBf16, {512, 1024});
    Tensor captured(device_arena(), Dtype::kBf16, {rows, 512}, "test");
    Tensor direct(device_arena(), Dtype::kBf16, {rows, 512}, "test");
    const auto run = [&](const Tensor& y) {
      exact().gemm.gemm(cuda_stream(), {.a = x, .b = w, .c = y, .transpose_b = true});
    };
    const Tensor warm = noise(Dtype::kBf16, {3, 72}), weight = noise(Dtype::kBf16, {40, 72});
    Tensor result(device_arena(), Dtype::kBf16, {3, 40}, "test");
    exact().gemm.gemm(cuda_stream(), {.a = warm, .b = weight, .c = result, .transpose_b = true});
    std::unique_ptr<DeviceGraph> graph =
        cuda().device.capture(cuda_stream(), [&] { run(captured); });
    graph->start();
    run(direct);
    EXPECT_EQ(bytes_of(captured), bytes_of(direct)) << rows << " rows";
    graph = cuda().device.capture(cuda_stream(), [&] { run(captured); });
    graph->start();
    EXPECT_EQ(bytes_of(captured), bytes_of(direct)) << rows << " rows, again";
  }
}

// Any split of the rows among experts and calls: each row is computed alone, then with all.
TEST_F(CudaExact, RowsOfExperts) {
  for (Dtype dtype : kModelDtypes) {
    const std::int64_t experts = 6, in = 512, out = 264;
    const std::vector<std::int32_t> offsets = {0, 1, 1, 18, 180, 300, 333};
    const std::int64_t total = offsets.back();
    const Tensor x = noise(dtype, {total, in}), w = noise(dtype, {experts, out, in});
    const Tensor bias = noise(dtype, {experts, out});
    const auto run = [&](const View& rows, const std::vector<std::int32_t>& at) {
      Tensor y(device_arena(), dtype, {rows.shape[0], out}, "test");
      const Twin starts = words(at);
      exact().moe.grouped_gemm(
          cuda_stream(),
          {.x = rows, .w = w, .y = y, .bias = bias, .offsets = starts.device.as<std::int32_t>()});
      return bytes_of(y);
    };
    const std::vector<std::byte> all = run(x, offsets);
    const std::size_t row_bytes = all.size() / static_cast<std::size_t>(total);
    for (std::int64_t row : {0, 1, 17, 18, 100, 179, 299, 300, 332}) {
      std::vector<std::int32_t> alone;
      for (std::int32_t offset : offsets) alone.push_back(offset > row ? 1 : 0);
      const std::vector<std::byte> one = run(x.view().rows(row, row + 1), alone);
      const std::byte* expected = all.data() + static_cast<std::size_t>(row) * row_bytes;
      EXPECT_EQ(std::memcmp(one.data(), expected, row_bytes), 0)
          << name_of(dtype) << " row " << row;
    }
  }
}

// Biases of experts are added by a product that adds to its result.
TEST_F(CudaExact, ProductsThatAdd) {
  const Tensor a = noise(Dtype::kBf16, {100, 32}), b = noise(Dtype::kBf16, {32, 264});
  const Tensor before = noise(Dtype::kBf16, {100, 264});
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    Tensor c(device_arena(), Dtype::kBf16, {end - begin, 264}, "test");
    cuda().cast(cuda_stream(), before.rows(begin, end), c);
    exact().gemm.gemm(cuda_stream(), {.a = a.rows(begin, end), .b = b, .c = c, .beta = 1});
    return bytes_of(c);
  };
  const std::vector<std::byte> all = run(0, 100);
  for (std::int64_t row : {0, 50, 99}) {
    const std::vector<std::byte> one = run(row, row + 1);
    EXPECT_EQ(std::memcmp(one.data(), all.data() + static_cast<std::size_t>(row) * one.size(),
                          one.size()),
              0)
        << "row " << row;
  }
}

// FP8 with scales per run and per square.
TEST_F(CudaExact, RowsInFp8) {
  if (!test::gpu_has_arch(90)) GTEST_SKIP() << "no tensor cores for FP8";
  const QuantizeTools tools{cuda(), cuda_stream(), device_arena()};
  const Tensor x = noise(Dtype::kBf16, {300, 512}), w = noise(Dtype::kBf16, {384, 512});
  const Tensor bias = noise(Dtype::kBf16, {384});
  const auto quantized = [&](const Tensor& from, Fp8Role role) {
    QuantizeRequest request;
    request.x = from;
    request.recipe = {Fp8Scaling::kBlockwise, Fp8Format::kE4m3, 0, true};
    request.role = role;
    request.columns = false;
    return quantize(tools, request);
  };
  const Quantized weight = quantized(w, Fp8Role::kWeight);
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    const Quantized rows = quantized(x.rows(begin, end), Fp8Role::kInput);
    Tensor y(device_arena(), Dtype::kBf16, {end - begin, 384}, "test");
    exact().quantize.scaled_gemm(
        cuda_stream(),
        {.a = rows.by_rows(), .b = weight.by_rows(), .c = y, .bias = bias, .fast = true});
    return bytes_of(y);
  };
  const std::vector<std::byte> all = run(0, 300);
  for (std::int64_t count : {1, 16, 129}) {
    const std::vector<std::byte> some = run(300 - count, 300);
    EXPECT_EQ(std::memcmp(some.data(), all.data() + all.size() - some.size(), some.size()), 0)
        << count << " rows";
  }
}

}  // namespace
}  // namespace bev::cuda_test
