// MoE: sorting of few rows, and the grouped GEMM kernels without TMA, against the CPU.
#include <gtest/gtest.h>

#include "backend/cuda/moe/moe_launchers.h"
#include "kernels/moe.h"
#include "tests/cuda_emulation/emulated_stream.h"

namespace bev::cuda_emulation {
namespace {
using namespace kernel_test;
using cuda::GroupedGemm;

TEST(EmulatedMoe, SortsFewRowsAsTheCpu) {
  constexpr std::int64_t kTopk = 2;
  for (std::int64_t tokens : {1, 5, 64}) {
    for (std::int64_t experts : {1, 3, 300}) {
      std::vector<std::int32_t> chosen;
      for (std::int64_t i = 0; i < tokens * kTopk; ++i) {
        const auto number =
            static_cast<std::int32_t>(mix_bits(3, static_cast<std::uint64_t>(i)) % 1000);
        chosen.push_back(i % 7 == 3 ? -1 : number % static_cast<std::int32_t>(2 * experts));
      }
      const auto slots = chosen.size();
      const auto row = static_cast<std::int64_t>(slots);
      std::vector<std::int32_t> order(slots, -7), place(slots, -7);
      std::vector<std::int32_t> offsets(static_cast<std::size_t>(experts) + 1, -7);
      DeviceArray<std::int32_t> device_chosen(chosen), got_order(order), got_place(place);
      DeviceArray<std::int32_t> got_offsets(offsets);
      const auto args = [&](std::int32_t* from, std::int32_t* to_order, std::int32_t* to_place,
                            std::int32_t* to_offsets) {
        return SortRowsArgs{.experts = {from, Dtype::kI32, {tokens, kTopk}},
                            .first_expert = 1,
                            .order = {to_order, Dtype::kI32, {row}},
                            .place = {to_place, Dtype::kI32, {row}},
                            .offsets = {to_offsets, Dtype::kI32, {experts + 1}}};
      };
      ThreadPool pool(1);
      cpu_kernels().moe.sort_rows({.pool = &pool},
                                  args(chosen.data(), order.data(), place.data(), offsets.data()));
      EmulatedStream stream;
      const SortRowsArgs device =
          args(device_chosen.data(), got_order.data(), got_place.data(), got_offsets.data());
      ASSERT_TRUE(cuda::sort_few_supports(device));
      cuda::sort_few(stream, device);
      EXPECT_EQ(got_order.values(), order);
      EXPECT_EQ(got_place.values(), place);
      EXPECT_EQ(got_offsets.values(), offsets);
      EXPECT_TRUE(got_order.intact() && got_place.intact() && got_offsets.intact());
    }
  }
}

struct Case {
  std::vector<std::int32_t> offsets;
  std::int64_t rows, in, out;
  Dtype dtype = Dtype::kBf16;
  bool bias = false;
};

using Kernel = void (*)(const Stream&, const GroupedGemmArgs&);

template <GroupedGemm kGemm>
void plain(const Stream& stream, const GroupedGemmArgs& args) {
  cuda::grouped_plain(stream, args, kGemm);
}
template <GroupedGemm kGemm>
void mma(const Stream& stream, const GroupedGemmArgs& args) {
  ASSERT_TRUE(cuda::grouped_mma_supports(args));
  cuda::grouped_mma(stream, args, kGemm);
}
void skinny(const Stream& stream, const GroupedGemmArgs& args) {
  if (cuda::grouped_skinny_supports(args)) return cuda::grouped_skinny(stream, args);
  cuda::grouped_plain(stream, args, GroupedGemm::kForward);
}

// x, w and y; the one that the kernel computes is compared.
void check(const Case& item, GroupedGemm gemm, Kernel kernel) {
  const auto experts = static_cast<std::int64_t>(item.offsets.size()) - 1;
  Buffer x = random_buffer(item.dtype, {item.rows, item.in}, 1);
  Buffer w = random_buffer(item.dtype, {experts, item.out, item.in}, 2);
  Buffer y = random_buffer(item.dtype, {item.rows, item.out}, 3);
  Buffer bias = random_buffer(item.dtype, {experts, item.out}, 4);
  DeviceTensor device_x(x.view()), device_w(w.view()), device_y(y.view()), device_bias(bias.view());
  DeviceArray<std::int32_t> offsets(item.offsets);
  const bool forward = gemm == GroupedGemm::kForward;
  const MoeKernels& cpu = cpu_kernels().moe;
  ThreadPool pool(1);
  (forward ? cpu.grouped_gemm
   : gemm == GroupedGemm::kDgrad
       ? cpu.grouped_dgrad
       : cpu.grouped_wgrad)({.pool = &pool}, {.x = x.view(),
                                              .w = w.view(),
                                              .y = y.view(),
                                              .bias = item.bias && forward ? bias.view() : View{},
                                              .offsets = item.offsets.data()});
  EmulatedStream stream;
  try {
    kernel(stream, {.x = device_x.view(),
                    .w = device_w.view(),
                    .y = device_y.view(),
                    .bias = item.bias && forward ? device_bias.view() : View{},
                    .offsets = offsets.data()});
  } catch (const KernelFault& error) {
    ADD_FAILURE() << error.what();
  }
  EXPECT_TRUE(device_x.intact() && device_w.intact() && device_y.intact());
  const double tolerance = item.dtype == Dtype::kF32 ? 2e-6 : 4 * epsilon_of(item.dtype);
  expect_near(device_x.values(), x.values(), tolerance);
  expect_near(device_w.values(), w.values(), tolerance);
  expect_near(device_y.values(), y.values(), tolerance);
}

TEST(EmulatedMoe, GroupedGemmsMatchTheCpu) {
  for (const Case& item : std::vector<Case>{{{0, 3, 3, 10}, 12, 64, 40, Dtype::kBf16, true},
                                            {{0, 1, 2, 2, 4}, 4, 520, 48, Dtype::kF16},
                                            {{0, 70, 140}, 140, 40, 136, Dtype::kBf16, true}}) {
    SCOPED_TRACE(testing::Message() << item.rows << " x " << item.out << " x " << item.in);
    check(item, GroupedGemm::kForward, skinny);
    check(item, GroupedGemm::kForward, plain<GroupedGemm::kForward>);
    check(item, GroupedGemm::kDgrad, plain<GroupedGemm::kDgrad>);
    check(item, GroupedGemm::kWgrad, plain<GroupedGemm::kWgrad>);
    check(item, GroupedGemm::kForward, mma<GroupedGemm::kForward>);
    check(item, GroupedGemm::kDgrad, mma<GroupedGemm::kDgrad>);
    check(item, GroupedGemm::kWgrad, mma<GroupedGemm::kWgrad>);
    if (HasFailure()) return;
  }
  const Case odd{{0, 3, 3, 10}, 12, 33, 7, Dtype::kF32, true};
  check(odd, GroupedGemm::kForward, plain<GroupedGemm::kForward>);
  check(odd, GroupedGemm::kDgrad, plain<GroupedGemm::kDgrad>);
  check(odd, GroupedGemm::kWgrad, plain<GroupedGemm::kWgrad>);
}

}  // namespace
}  // namespace bev::cuda_emulation
