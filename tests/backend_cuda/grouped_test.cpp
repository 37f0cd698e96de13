// Grouped GEMM of experts. Few rows per expert, and unaligned rows, use other kernels than many
// rows.
#include <gtest/gtest.h>

#include "base/text.h"
#include "kernels/moe.h"
#include "tests/backend_cuda/family.h"

namespace bev::cuda_test {
namespace {

struct GroupedCase {
  std::vector<std::int32_t> counts;  // rows of each expert
  std::int64_t unused, in, out;
};

const std::vector<GroupedCase> kCases = {
    {{3, 0, 1}, 0, 7, 5},
    {{0, 0, 0, 0}, 3, 16, 8},
    {{129, 1, 0, 200}, 5, 72, 136},
    {{0, 0, 640}, 0, 256, 64},
    {{17, 64, 128, 63}, 130, 128, 200},
    {{1, 1, 1, 1, 1}, 0, 512, 24},
    {{300}, 1, 40, 384},
    {std::vector<std::int32_t>(70, 9), 0, 64, 96},
    {{0, 0, 0}, 300, 64, 72},
    {{1, 0, 257, 0, 0, 383, 2, 65}, 40, 200, 520},
    {{128, 256, 0, 64}, 0, 512, 768},
    {{2200, 0, 90}, 7, 64, 320},
    {{0, 1, 0, 0, 1, 2, 0, 0, 0, 9, 0, 0}, 3, 768, 2048},
    {{0, 3, 17, 9, 0, 8, 5}, 2, 520, 136},
    // Tiles are processed in pairs: odd numbers of them, in rows and in columns, and more pairs
    // than there are SMs.
    {{1, 129, 257, 385, 640}, 0, 64, 520},
    {{0, 1000, 0}, 129, 40, 264},
    {{2000, 129, 1}, 7, 16, 2312},
    {{0, 47, 1, 0, 33, 16, 2, 8, 31, 0, 64, 5, 0, 90, 17, 40, 1}, 1, 88, 264},
};

class CudaGrouped : public CudaRig {
 protected:
  // The tensors of forward, dgrad and wgrad.
  struct Products {
    Twin offsets, x, w, bias, y, dy, dx, dw, fresh, dbias;
  };
  static std::vector<std::int32_t> starts(const GroupedCase& item) {
    std::vector<std::int32_t> out = {0};
    for (std::int32_t count : item.counts) out.push_back(out.back() + count);
    return out;
  }
  Products draw(const GroupedCase& item, Dtype dtype, Dtype gradient) {
    const auto experts = static_cast<std::int64_t>(item.counts.size());
    const std::vector<std::int32_t> at = starts(item);
    const std::int64_t total = at.back() + item.unused;
    const Shape weight = {experts, item.out, item.in};
    return {.offsets = words(at),
            .x = random(dtype, {total, item.in}),
            .w = random(dtype, weight),
            .bias = random(dtype, {experts, item.out}),
            .y = poisoned(dtype, {total, item.out}),
            .dy = random(dtype, {total, item.out}),
            .dx = poisoned(dtype, {total, item.in}),
            .dw = random(gradient, weight),
            .fresh = poisoned(gradient, weight),
            .dbias = poisoned(gradient, {experts, item.out})};
  }
  static void run(const Kernels& kernels, const Stream& stream, Tensor Twin::*side,
                  const Products& all) {
    const auto* at = (all.offsets.*side).as<std::int32_t>();
    kernels.moe.grouped_gemm(stream, {.x = all.x.*side,
                                      .w = all.w.*side,
                                      .y = all.y.*side,
                                      .bias = all.bias.*side,
                                      .offsets = at});
    kernels.moe.grouped_dgrad(
        stream, {.x = all.dx.*side, .w = all.w.*side, .y = all.dy.*side, .offsets = at});
    kernels.moe.grouped_wgrad(
        stream, {.x = all.x.*side, .w = all.fresh.*side, .y = all.dy.*side, .offsets = at});
    kernels.moe.grouped_wgrad(
        stream, {.x = {}, .w = {}, .y = all.dy.*side, .bias = all.dbias.*side, .offsets = at});
  }
  static void add(const Kernels& kernels, const Stream& stream, Tensor Twin::*side,
                  const Products& all) {
    const auto* at = (all.offsets.*side).as<std::int32_t>();
    kernels.moe.grouped_wgrad(
        stream,
        {.x = all.x.*side, .w = all.dw.*side, .y = all.dy.*side, .offsets = at, .beta = 0.5});
  }
  void run_exact(const Products& all) { run(cpu(), cpu_stream(), &Twin::exact, all); }
  void run_device(const Products& all) { run(cuda(), cuda_stream(), &Twin::device, all); }
  // Writes NaN to rows [begin, end), on the device only.
  void poison_rows(const Twin& rows, std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    Twin poison = poisoned(rows.device.dtype(), {end - begin, rows.device.shape()[1]});
    cuda().cast(cuda_stream(), poison.device, rows.device.rows(begin, end));
  }
};

TEST_F(CudaGrouped, ProductsMatchTheCpu) {
  for (const GroupedCase& item : kCases) {
    for (Dtype dtype : kModelDtypes) {
      for (bool wide : {false, true}) {
        SCOPED_TRACE(concat(item.counts.size(), " experts ", item.in, " x ", item.out, " ",
                            name_of(dtype), wide ? " into f32" : ""));
        const Dtype gradient = wide ? Dtype::kF32 : dtype;
        const Products all = draw(item, dtype, gradient);
        // Rows of no expert must not affect any result.
        const std::int64_t used = starts(item).back();
        poison_rows(all.x, used, used + item.unused);
        poison_rows(all.dy, used, used + item.unused);
        run_exact(all);
        run_device(all);
        add(cpu(), cpu_stream(), &Twin::exact, all);
        add(cuda(), cuda_stream(), &Twin::device, all);
        EXPECT_LT(error(all.y), tolerance(dtype)) << "y";
        EXPECT_LT(error(all.dx), tolerance(dtype)) << "dx";
        EXPECT_LT(error(all.dw), 2 * tolerance(gradient)) << "dw, added";
        EXPECT_LT(error(all.fresh), 2 * tolerance(gradient)) << "dw";
        EXPECT_LT(error(all.dbias), 2 * tolerance(gradient)) << "dbias";
      }
    }
  }
}

// Also if they overflow f32, and if a value is NaN.
TEST_F(CudaGrouped, SquaresOfWeightGradientsAreThoseOfTheResult) {
  for (const GroupedCase& item : kCases) {
    for (Dtype dtype : kModelDtypes) {
      for (double scale : {1.0, 1e24, std::nan("")}) {
        if (dtype == Dtype::kF16 && scale > 1) continue;
        Products all = draw(item, dtype, dtype);
        all.x = random(dtype, {all.x.device.shape()}, scale);
        Twin sum = words<double>({0.5});
        for (double beta : {0.0, 0.5}) {
          cuda().moe.grouped_wgrad(cuda_stream(), {all.x.device,
                                                   all.dw.device,
                                                   all.dy.device,
                                                   {},
                                                   all.offsets.device.as<std::int32_t>(),
                                                   beta,
                                                   sum.device.as<double>()});
          for (double value : download(all.dw.device)) *sum.exact.as<double>() += value * value;
        }
        const double got = download(sum.device)[0], want = *sum.exact.as<double>();
        EXPECT_TRUE(std::isnan(want) ? std::isnan(got) : std::abs(got - want) <= 1e-6 * want)
            << item.counts.size() << " experts " << item.in << " x " << item.out << " "
            << name_of(dtype) << " " << scale << ": " << got << ", wanted " << want;
      }
    }
  }
}

TEST_F(CudaGrouped, AnExpertsRowsReachNoOtherExpert) {
  for (const GroupedCase& item : kCases) {
    const std::vector<std::int32_t> at = starts(item);
    for (std::size_t sick = 0; sick < item.counts.size(); ++sick) {
      if (item.counts[sick] == 0) continue;
      SCOPED_TRACE(
          concat(item.counts.size(), " experts ", item.in, " x ", item.out, " sick ", sick));
      const Products all = draw(item, Dtype::kBf16, Dtype::kBf16);
      poison_rows(all.x, at[sick], at[sick + 1]);
      poison_rows(all.dy, at[sick], at[sick + 1]);
      run_exact(all);
      run_device(all);
      for (std::size_t e = 0; e < item.counts.size(); ++e) {
        if (e == sick) continue;
        const auto expert = static_cast<std::int64_t>(e);
        const double most = 2 * tolerance(Dtype::kBf16);
        EXPECT_LT(error(part(all.y, at[e], at[e + 1])), most) << "y of " << e;
        EXPECT_LT(error(part(all.dx, at[e], at[e + 1])), most) << "dx of " << e;
        EXPECT_LT(error(part(all.fresh, expert, expert + 1)), most) << "dw of " << e;
      }
      if (item.counts.size() > 20) break;
    }
  }
}

// A CUDA graph reads the offsets of the experts when it runs, not when it is captured.
TEST_F(CudaGrouped, RecordedProductsFollowTheCountsOfRows) {
  const GroupedCase item = {{200, 0, 100, 44}, 20, 136, 264};
  const Products all = draw(item, Dtype::kBf16, Dtype::kBf16);
  run_device(all);
  std::unique_ptr<DeviceGraph> recording =
      cuda().device.capture(cuda_stream(), [&] { run_device(all); });
  for (const std::vector<std::int32_t>& at : {std::vector<std::int32_t>{0, 1, 1, 129, 364},
                                              {0, 0, 364, 364, 364},
                                              {0, 90, 180, 270, 300}}) {
    cuda().device.upload(cuda_stream(), at.data(), all.offsets.device);
    std::copy(at.begin(), at.end(), all.offsets.exact.as<std::int32_t>());
    recording->start();
    run_exact(all);
    for (const Twin& result : {all.y, all.dx, all.fresh, all.dbias}) {
      EXPECT_LT(error(result), 2 * tolerance(Dtype::kBf16));
    }
  }
}

}  // namespace
}  // namespace bev::cuda_test
