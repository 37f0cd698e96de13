// Grouped FP8 GEMM of experts: quantised rows are bitwise the CPU's, GEMMs agree up to the order of
// sums.
#include <gtest/gtest.h>

#include <limits>

#include "base/text.h"
#include "tests/backend_cuda/quantize_rig.h"

namespace bev::cuda_test {
namespace {

struct GroupedFp8Case {
  std::vector<std::int32_t> counts;  // rows of each expert
  std::int64_t unused, in, out;
};

const std::vector<GroupedFp8Case> kCases = {
    {{3, 0, 1}, 0, 128, 128},
    {{0, 0, 0, 0}, 3, 256, 128},
    {{129, 1, 0, 200}, 5, 128, 384},
    {{0, 0, 640}, 0, 256, 256},
    {{17, 64, 128, 63}, 130, 384, 512},
    {{300}, 1, 640, 384},
    {std::vector<std::int32_t>(70, 9), 0, 128, 256},
    {{1, 0, 257, 0, 0, 383, 2, 65}, 40, 1024, 640},
    {{2200, 0, 90}, 7, 256, 768},
    {{1, 129, 257, 512}, 129, 128, 640},
    {{0, 1000, 0}, 0, 128, 256},
};

// The first values of a tensor: non-finite values become NaN, in their own blocks only.
constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<double> kOdd = {kInfinity, 1, -kInfinity,
                                  std::numeric_limits<double>::quiet_NaN()};

class CudaGroupedFp8 : public QuantizeRig {
 protected:
  static std::vector<std::int32_t> starts(const GroupedFp8Case& item) {
    std::vector<std::int32_t> out = {0};
    for (std::int32_t count : item.counts) out.push_back(out.back() + count);
    return out;
  }
  // The slots of `used` rows in shuffled order, -1 for the other rows, and the rows of all slots.
  static std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>> shuffled(
      std::int64_t used, std::int64_t rows, std::int64_t slots) {
    constexpr std::int64_t kStep = 7919;  // a prime, so that no slot occurs twice
    std::vector<std::int32_t> order(static_cast<std::size_t>(rows), -1);
    std::vector<std::int32_t> place(static_cast<std::size_t>(slots), -1);
    for (std::int64_t r = 0; r < used; ++r) {
      const std::int64_t slot = r * kStep % slots;
      order[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(slot);
      place[static_cast<std::size_t>(slot)] = static_cast<std::int32_t>(r);
    }
    return {order, place};
  }
  // x, the stacked weights, and dy, on either side.
  struct Factors {
    Quantized x, w, dy;
    const std::int32_t* offsets = nullptr;
  };
  static QuantizeRequest request_of(const View& x, Fp8Role role, Fp8Format gradients) {
    QuantizeRequest request;
    request.x = x;
    request.recipe = {Fp8Scaling::kBlockwise, gradients, 0, true};
    request.role = role;
    return request;
  }
  QuantizeGroups groups(const Twin& offsets, Tensor Twin::*side, std::int64_t rows) {
    const Tensor& at = offsets.*side;
    return {at.as<std::int32_t>(), at.numel() - 1, rows};
  }
  struct Case {
    Factors host, device;
    Twin offsets;
    std::int64_t experts, rows;
  };
  Case draw(const GroupedFp8Case& item, Fp8Format gradients) {
    Case out;
    const std::vector<std::int32_t> at = starts(item);
    out.experts = static_cast<std::int64_t>(item.counts.size());
    out.rows = at.back() + item.unused;
    out.offsets = words(at);
    Pair x = pair(Dtype::kBf16, {out.rows, item.in}, 0.5);
    Pair w = pair(Dtype::kBf16, {out.experts * item.out, item.in}, 0.5);
    Pair dy = pair(Dtype::kBf16, {out.rows, item.out}, 0.5);
    auto fill = [&](Factors& to, const QuantizeTools& tools, Tensor Pair::*numbers,
                    Tensor Twin::*side) {
      to.offsets = (out.offsets.*side).as<std::int32_t>();
      auto rows_of_experts = [&](const View& from, Fp8Role role) {
        QuantizeRequest request = request_of(from, role, gradients);
        request.groups = groups(out.offsets, side, out.rows);
        return zeroed(tools, request);
      };
      to.x = rows_of_experts(x.*numbers, Fp8Role::kInput);
      to.dy = rows_of_experts(dy.*numbers, Fp8Role::kGradient);
      to.w = quantize(tools, request_of(w.*numbers, Fp8Role::kWeight, gradients));
    };
    fill(out.host, cpu_tools(), &Pair::host, &Twin::exact);
    fill(out.device, cuda_tools(), &Pair::device, &Twin::device);
    return out;
  }
  // Calls run(kernels, stream, factors, c, bias) on both sides.
  template <class Run>
  void compare(const Case& item, const Shape& shape, const Shape& bias_shape, Dtype dtype,
               const char* what, const Run& run) {
    Pair c = pair(dtype, shape, 1), bias = pair(dtype, bias_shape, 1);
    run(cpu(), cpu_stream(), item.host, c.host, bias.host);
    run(cuda(), cuda_stream(), item.device, c.device, bias.device);
    Twin result{Tensor(host_arena(), Dtype::kF64, shape, "test"), c.device};
    cpu().cast(cpu_stream(), c.host, result.exact);
    // Tensor cores accumulate FP8 products with fewer bits than f32.
    EXPECT_LT(error(result), std::max(tolerance(dtype), 5e-4)) << what;
  }
  // The squares that wgrad adds are those of its result.
  void check_squares(const Case& item, const Shape& shape, Dtype dtype) {
    Pair c = pair(dtype, shape, 1);
    Twin sum = words<double>({0.5});
    cuda().quantize.grouped_wgrad(
        cuda_stream(), {item.device.dy.by_columns(), item.device.x.by_columns(), c.device,
                        item.device.offsets, 0.5, sum.device.as<double>()});
    for (double value : download(c.device)) *sum.exact.as<double>() += value * value;
    EXPECT_LT(error(sum), 1e-6);
  }
  void compare_products(const Case& drawn, const GroupedFp8Case& item, Dtype dtype) {
    const std::int64_t experts = drawn.experts;
    compare(drawn, {drawn.rows, item.out}, {experts, item.out}, dtype, "y",
            [&](const Kernels& kernels, const Stream& stream, const Factors& from, const View& c,
                const View& bias) {
              kernels.quantize.grouped_gemm(stream, {.a = from.x.by_rows(),
                                                     .b = from.w.by_rows(),
                                                     .c = c,
                                                     .bias = bias,
                                                     .offsets = from.offsets,
                                                     .experts = experts});
            });
    compare(drawn, {drawn.rows, item.in}, {1}, dtype, "dx",
            [&](const Kernels& kernels, const Stream& stream, const Factors& from, const View& c,
                const View&) {
              kernels.quantize.grouped_gemm(stream, {.a = from.dy.by_rows(),
                                                     .b = from.w.by_columns(),
                                                     .c = c,
                                                     .offsets = from.offsets,
                                                     .experts = experts});
            });
    for (double beta : {0.0, 0.5}) {
      compare(drawn, {experts, item.out, item.in}, {1}, dtype, "dw",
              [&](const Kernels& kernels, const Stream& stream, const Factors& from, const View& c,
                  const View&) {
                kernels.quantize.grouped_wgrad(stream, {.dy = from.dy.by_columns(),
                                                        .x = from.x.by_columns(),
                                                        .w = c,
                                                        .offsets = from.offsets,
                                                        .beta = beta});
              });
    }
    check_squares(drawn, {experts, item.out, item.in}, dtype);
  }
};

TEST_F(CudaGroupedFp8, ProductsMatchTheCpus) {
  if (!test::gpu_has_arch(90)) GTEST_SKIP() << "no tensor cores for FP8";
  for (const GroupedFp8Case& item : kCases) {
    for (Fp8Format gradients : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
      const Case drawn = draw(item, gradients);
      for (Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF32}) {
        SCOPED_TRACE(concat(item.counts.size(), " experts ", item.in, " x ", item.out, " ",
                            name_of(dtype), gradients == Fp8Format::kE5m2 ? ", E5M2" : ""));
        compare_products(drawn, item, dtype);
      }
    }
  }
}

// Permuted from tokens, and as they are; unused rows stay unchanged.
TEST_F(CudaGroupedFp8, RowsHaveTheCpusBits) {
  for (const GroupedFp8Case& item : kCases) {
    for (Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF32}) {
      SCOPED_TRACE(concat(item.counts.size(), " experts ", item.in, " ", name_of(dtype)));
      const std::vector<std::int32_t> at = starts(item);
      const std::int64_t rows = at.back() + item.unused, tokens = rows / 2 + 1;
      const auto [slots, row_of_slot] = shuffled(at.back(), rows, 2 * tokens);
      Twin offsets = words(at), order = words(slots), place = words(row_of_slot);
      for (bool gathers : {true, false}) {
        Pair x = pair(dtype, {gathers ? tokens : rows, item.in}, 2, kOdd);
        auto forms = [&](const QuantizeTools& tools, const View& from, Tensor Twin::*side,
                         bool by_rows, bool by_columns) {
          QuantizeRequest request = request_of(from, Fp8Role::kGradient, Fp8Format::kE5m2);
          request.rows = by_rows;
          request.columns = by_columns;
          request.groups = groups(offsets, side, rows);
          if (gathers) {
            request.groups.order = (order.*side).as<std::int32_t>();
            request.groups.place = (place.*side).as<std::int32_t>();
          }
          request.groups.topk = 2;
          return zeroed(tools, request);
        };
        Quantized host = forms(cpu_tools(), x.host, &Twin::exact, true, true);
        for (auto [by_rows, by_columns] : {std::pair(true, true), {true, false}, {false, true}}) {
          Quantized device = forms(cuda_tools(), x.device, &Twin::device, by_rows, by_columns);
          if (by_rows) expect_same(host.rows, device.rows, "rows");
          if (by_rows) expect_same(host.row_scales, device.row_scales, "scales of rows");
          if (by_columns) expect_same(host.columns, device.columns, "columns");
          if (by_columns) expect_same(host.column_scales, device.column_scales, "their scales");
        }
      }
    }
  }
}

// A CUDA graph reads the offsets of the experts when it runs, not when it is captured.
TEST_F(CudaGroupedFp8, RecordedProductsFollowTheCountsOfRows) {
  if (!test::gpu_has_arch(90)) GTEST_SKIP() << "no tensor cores for FP8";
  const GroupedFp8Case item = {{200, 0, 100, 44}, 20, 256, 384};
  Case drawn = draw(item, Fp8Format::kE4m3);
  Tensor y(device_arena(), Dtype::kBf16, {drawn.rows, item.out}, "test");
  Tensor expected(host_arena(), Dtype::kBf16, {drawn.rows, item.out}, "test");
  auto run = [&](const Kernels& kernels, const Stream& stream, const Factors& from, const View& c) {
    kernels.quantize.grouped_gemm(stream, {.a = from.x.by_rows(),
                                           .b = from.w.by_rows(),
                                           .c = c,
                                           .offsets = from.offsets,
                                           .experts = drawn.experts});
  };
  run(cuda(), cuda_stream(), drawn.device, y);
  std::unique_ptr<DeviceGraph> recording =
      cuda().device.capture(cuda_stream(), [&] { run(cuda(), cuda_stream(), drawn.device, y); });
  for (const std::vector<std::int32_t>& at :
       {std::vector<std::int32_t>{0, 1, 1, 129, 344}, {0, 0, 344, 344, 344}}) {
    cuda().device.upload(cuda_stream(), at.data(), drawn.offsets.device);
    std::copy(at.begin(), at.end(), drawn.offsets.exact.as<std::int32_t>());
    recording->start();
    run(cpu(), cpu_stream(), drawn.host, expected);
    Twin result{Tensor(host_arena(), Dtype::kF64, expected.shape(), "test"), y};
    cpu().cast(cpu_stream(), expected, result.exact);
    EXPECT_LT(error(result), tolerance(Dtype::kBf16));
  }
}

}  // namespace
}  // namespace bev::cuda_test
