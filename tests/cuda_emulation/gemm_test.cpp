// The GEMM kernels for linear layers without TMA: few rows (gemm_ring), and tiles of mma.sync.
#include "kernels/gemm.h"

#include <gtest/gtest.h>

#include "backend/cuda/gemm/linear_gemm.h"
#include "tests/cuda_emulation/emulated_stream.h"

namespace bev::cuda {

bool LinearGemm::has_whole_words() const {
  const auto aligned = [](const void* at) {
    return reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
  };
  return size_of(in) == 2 && k % 8 == 0 && a_stride % 8 == 0 && aligned(a) && aligned(b);
}

}  // namespace bev::cuda

namespace bev::cuda_emulation {
namespace {
using namespace kernel_test;

struct Case {
  std::int64_t m, n, k;
  Dtype in = Dtype::kBf16, out = Dtype::kBf16;
  bool bias = false;
  std::int64_t padding = 0;  // of the rows of a and c
};

class Problem {
 public:
  explicit Problem(const Case& item)
      : item_(item),
        a_(random_buffer(item.in, {item.m, item.k + 8 * item.padding}, 1)),
        b_(random_buffer(item.in, {item.n, item.k}, 2)),
        bias_(random_buffer(item.in, {item.n}, 3)),
        device_a_(a_.view()),
        device_b_(b_.view()),
        device_bias_(bias_.view()) {}

  // Calls the kernel and compares; returns the bits of c.
  template <class Call>
  std::string check(const Call& call) {
    const std::int64_t c_stride = item_.n + item_.padding;
    DeviceTensor c(item_.out, {item_.m, c_stride});
    call(cuda::LinearGemm{.a = device_a_.data(),
                          .b = device_b_.data(),
                          .bias = item_.bias ? device_bias_.data() : nullptr,
                          .c = c.data(),
                          .in = item_.in,
                          .out = item_.out,
                          .m = item_.m,
                          .n = item_.n,
                          .k = item_.k,
                          .a_stride = item_.k + 8 * item_.padding,
                          .c_stride = c_stride,
                          .alpha = 0.5f});
    EXPECT_TRUE(c.intact());
    expect_near(c.values(), wanted(c_stride),
                item_.out == Dtype::kF32 ? 1e-5 : 2 * epsilon_of(item_.out));
    return c.bits();
  }

 private:
  // Padding is not written.
  std::vector<double> wanted(std::int64_t c_stride) {
    const std::vector<double> a = a_.values(), b = b_.values(), bias = bias_.values();
    std::vector<double> out(static_cast<std::size_t>(item_.m * c_stride),
                            std::numeric_limits<double>::quiet_NaN());
    const std::int64_t a_stride = item_.k + 8 * item_.padding;
    for (std::int64_t i = 0; i < item_.m; ++i) {
      for (std::int64_t j = 0; j < item_.n; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < item_.k; ++k) {
          sum += a[static_cast<std::size_t>(i * a_stride + k)] *
                 b[static_cast<std::size_t>(j * item_.k + k)];
        }
        out[static_cast<std::size_t>(i * c_stride + j)] =
            0.5 * sum + (item_.bias ? bias[static_cast<std::size_t>(j)] : 0);
      }
    }
    return out;
  }

  Case item_;
  Buffer a_, b_, bias_;
  DeviceTensor device_a_, device_b_, device_bias_;
};

const std::vector<Case> kCases = {
    {1, 16, 8},
    {1, 100, 1000, Dtype::kBf16, Dtype::kBf16, true},
    {3, 33, 136, Dtype::kF16, Dtype::kF16},
    {8, 70, 520, Dtype::kBf16, Dtype::kF32, true, 3},
    {9, 48, 256, Dtype::kF16, Dtype::kF32},
    {16, 17, 640, Dtype::kBf16, Dtype::kBf16, true, 1},
    {32, 40, 392, Dtype::kBf16, Dtype::kBf16},
};

template <class Body>
void for_cases(const Body& body) {
  for (const Case& item : kCases) {
    for (int processors : {1, 5, 132}) {
      SCOPED_TRACE(testing::Message() << item.m << " x " << item.n << " x " << item.k << ", "
                                      << processors << " processors");
      const Schedule schedule = processors == 1   ? Schedule::kFirst
                                : processors == 5 ? Schedule::kLast
                                                  : Schedule::kRandom;
      EmulatedStream stream({.multiprocessors = processors, .schedule = schedule});
      try {
        body(item, stream);
      } catch (const KernelFault& error) {
        ADD_FAILURE() << error.what();
      }
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(EmulatedGemm, FewRowsMatchTheDefinition) {
  for_cases([](const Case& item, const Stream& stream) {
    Problem problem(item);
    problem.check([&](const cuda::LinearGemm& gemm) { cuda::gemm_ring(stream, gemm, false); });
  });
}

TEST(EmulatedGemm, ExactFewRowsHaveTheBitsOfTheTiles) {
  for_cases([](const Case& item, const Stream& stream) {
    Problem problem(item);
    const std::string tiles =
        problem.check([&](const cuda::LinearGemm& gemm) { cuda::linear_mma(stream, gemm); });
    const std::string few =
        problem.check([&](const cuda::LinearGemm& gemm) { cuda::gemm_ring(stream, gemm, true); });
    EXPECT_TRUE(few == tiles);
  });
}

TEST(EmulatedGemm, TilesOfManyRowsMatchTheDefinition) {
  EmulatedStream stream;
  Problem problem({130, 129, 72, Dtype::kF16, Dtype::kF16, true, 1});
  problem.check([&](const cuda::LinearGemm& gemm) { cuda::linear_mma(stream, gemm); });
}

}  // namespace
}  // namespace bev::cuda_emulation
