// Top-k routing compared with sorting, with many equal logits.
#include "kernels/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/backend_cpu/kernel_fixture.h"

namespace bev {
namespace {
using namespace kernel_test;

std::vector<std::int32_t> sorted_choices(const std::vector<double>& logits, std::size_t count) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  order.resize(count);
  return order;
}

TEST(Route, ChoosesTheLargestAndOfEqualOnesTheFirst) {
  constexpr std::int64_t kTokens = 70, kTopk = 5;
  for (std::int64_t experts : {5, 16, 37, 64}) {
    std::vector<double> logits = numbers(kTokens * experts, 1);
    for (double& logit : logits) logit = std::round(4 * logit);
    Buffer in(Dtype::kF32, {kTokens, experts}, logits);
    on_every_level([&](const Kernels& kernels, const Stream& stream) {
      std::vector<std::int32_t> chosen(static_cast<std::size_t>(kTokens * kTopk));
      Buffer probs(Dtype::kF32, {kTokens, kTopk});
      kernels.router.route(stream, {.logits = in.view(),
                                    .experts = {chosen.data(), Dtype::kI32, {kTokens, kTopk}},
                                    .probs = probs.view(),
                                    .rule = {.topk = kTopk}});
      for (std::int64_t token = 0; token < kTokens; ++token) {
        const auto row = logits.begin() + token * experts;
        const std::vector<std::int32_t> got(chosen.begin() + token * kTopk,
                                            chosen.begin() + (token + 1) * kTopk);
        EXPECT_EQ(got, sorted_choices({row, row + experts}, kTopk)) << "token " << token;
      }
      return probs.bits();
    });
  }
}

}  // namespace
}  // namespace bev
