// The comparison of backends by itself: levels of the CPU's kernels agree, and a kernel that is a
// little off is named with all that is needed to find it.
#include "tests/support/op_checks.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "backend/cpu/cpu_kernels.h"
#include "kernels/gemm.h"
#include "kernels/norm.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "tests/support/lazy_lane.h"

namespace bev::test {
namespace {

// A norm and a linear layer: outputs and gradients of inputs and parameters.
OpCase layer_case(std::int64_t tokens) {
  return {"norm and linear", {{{tokens, 6}}}, {{{6}}, {{4, 6}}}, [](Bench& bench, const auto& in) {
            NormSpec spec;
            spec.weight = bench.params[0].get();
            Var y = norm(bench.ctx, in[0], spec);
            return OpOutputs{{linear(bench.ctx, y, *bench.params[1], nullptr)}};
          }};
}

TEST(CompareOp, LevelsOfTheCpuAgree) {
  for (CpuLevel level : {CpuLevel::kV2, best_cpu_level()}) {
    for (std::int64_t tokens : {5, 301}) compare_op(layer_case(tokens), cpu_kernels(level));
  }
}

// All failures of a comparison.
std::vector<std::string> failures_of(const OpCase& test, const Kernels& kernels) {
  testing::TestPartResultArray results;
  {
    testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    compare_op(test, kernels);
  }
  std::vector<std::string> messages;
  for (int i = 0; i < results.size(); ++i) {
    messages.emplace_back(results.GetTestPartResult(i).message());
  }
  return messages;
}

// Adds to the first number of a tensor.
void disturb(const View& view, double by) {
  visit_float(view.dtype, [&](auto zero) {
    using T = decltype(zero);
    T& first = *view.as<T>();
    first = T(static_cast<accumulate_t<T>>(static_cast<double>(first) + by));
  });
}

TEST(CompareOp, NamesAnOutputThatIsOff) {
  GemmKernels gemm = cpu_kernels().gemm;
  gemm.gemm = [](const Stream& stream, const GemmArgs& args) {
    cpu_kernels().gemm.gemm(stream, args);
    if (args.transpose_b && args.c.dtype == Dtype::kBf16) disturb(args.c, 0.5);
  };
  const Kernels kernels = with_table(lazy_kernels(), gemm);
  const std::vector<std::string> messages = failures_of(layer_case(5), kernels);
  ASSERT_EQ(messages.size(), 1u);  // f32 agrees, and after one that does not nothing else runs
  for (const char* part : {"norm and linear, bf16: output 0: relative error ", ", tolerance 0.015;",
                           "most at 0 of 20: ", ", expected "}) {
    EXPECT_NE(messages[0].find(part), std::string::npos) << messages[0];
  }
}

TEST(CompareOp, NamesAGradientThatIsOff) {
  NormKernels norm = cpu_kernels().norm;
  norm.backward = [](const Stream& stream, const NormBackwardArgs& args) {
    cpu_kernels().norm.backward(stream, args);
    disturb(args.dweight, 1e-2);
  };
  const Kernels kernels = with_table(lazy_kernels(), norm);
  for (std::int64_t tokens : {5, 301}) {
    const std::vector<std::string> messages = failures_of(layer_case(tokens), kernels);
    ASSERT_EQ(messages.size(), 1u);
    const char* wanted = "norm and linear, f32: gradient of parameter 0: relative error ";
    EXPECT_NE(messages[0].find(wanted), std::string::npos) << messages[0];
  }
}

// Mistakes that only show where a weight is frozen, or in the second micro-batch.
TEST(CompareOp, TriesEveryKindOfRun) {
  NormKernels norm = cpu_kernels().norm;
  norm.backward = [](const Stream& stream, const NormBackwardArgs& args) {
    cpu_kernels().norm.backward(stream, args);
    if (args.dweight.empty()) disturb(args.dx, 1);
  };
  std::vector<std::string> messages = failures_of(layer_case(5), with_table(lazy_kernels(), norm));
  ASSERT_EQ(messages.size(), 1u);
  const char* wanted = "norm and linear, f32, frozen parameter 0: gradient of input 0: ";
  EXPECT_NE(messages[0].find(wanted), std::string::npos) << messages[0];

  norm.backward = [](const Stream& stream, const NormBackwardArgs& args) {
    cpu_kernels().norm.backward(stream, args);
    if (args.beta != 0) disturb(args.dweight, 1);
  };
  messages = failures_of(layer_case(5), with_table(lazy_kernels(), norm));
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_NE(messages[0].find("f32, twice: gradient of parameter 0: "), std::string::npos)
      << messages[0];
}

TEST(CompareOp, NamesARunThatABackendRefuses) {
  NormKernels norm = cpu_kernels().norm;
  norm.forward = [](const Stream& stream, const NormForwardArgs& args) {
    BEV_CHECK(args.x.dtype != Dtype::kF16, ErrorKind::kDevice, "norm: no kernel for f16");
    cpu_kernels().norm.forward(stream, args);
  };
  const std::vector<std::string> messages =
      failures_of(layer_case(5), with_table(lazy_kernels(), norm));
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_NE(messages[0].find("norm and linear, f16: norm: no kernel for f16"), std::string::npos)
      << messages[0];
}

}  // namespace
}  // namespace bev::test
