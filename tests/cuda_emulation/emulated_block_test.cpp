// The emulator finds what it is for: errors of kernels.
#include "tests/cuda_emulation/emulated_block.h"

#include <gtest/gtest.h>

#include "tests/cuda_emulation/device_memory.h"
#include "tests/cuda_emulation/include/cuda_runtime.h"

namespace bev::cuda_emulation {
namespace {

// The message of the fault of a kernel with 64 threads and 256 bytes of dynamic shared memory.
std::string fault_of(const std::function<void()>& thread) {
  device() = {};
  try {
    run_kernel("kernel", Configuration(2, 64, 256), thread);
  } catch (const KernelFault& error) {
    return error.what();
  }
  return "none";
}
bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST(EmulatedBlock, RunsAllThreads) {
  DeviceArray<int> out(std::vector<int>(128, 0));
  EXPECT_EQ(fault_of([&] {
              int* shared = static_cast<int*>(dynamic_shared());
              const int i = static_cast<int>(threadIdx.x);
              shared[i] = __shfl_xor_sync(~0u, i, 1);
              __syncthreads();
              out.data()[static_cast<int>(blockIdx.x) * 64 + i] = shared[63 - i];
            }),
            "none");
  for (int i = 0; i < 128; ++i) {
    EXPECT_EQ(out.values()[static_cast<std::size_t>(i)], (63 - i % 64) ^ 1);
  }
}

TEST(EmulatedBlock, FindsBadAddresses) {
  DeviceArray<int> out(std::vector<int>(64, 0));
#if !defined(__SANITIZE_ADDRESS__)  // which ends the program
  EXPECT_TRUE(
      has(fault_of([&] { out.data()[threadIdx.x * 64] = 1; }), "memory that is not its own"));
  EXPECT_TRUE(has(
      fault_of([] { static_cast<int*>(dynamic_shared())[static_cast<int>(threadIdx.x) - 1] = 1; }),
      "below a variable"));
  EXPECT_TRUE(has(fault_of([] { static_cast<int*>(dynamic_shared())[threadIdx.x + 1] = 1; }),
                  "memory that is not its own"));
#endif
  EXPECT_TRUE(has(fault_of([] {
                    auto& variable = shared_variable<int[32]>([] {});
                    variable[threadIdx.x % 32 + 1] = 1;
                  }),
                  "above a variable"));
  EXPECT_TRUE(has(fault_of([&] { shared_address(out.data()); }), "not shared"));
  EXPECT_TRUE(
      has(fault_of([&] { copy_async(shared_address(dynamic_shared()) + 8, out.data(), 16, 16); }),
          "not aligned"));
}

TEST(EmulatedBlock, FindsCollectivesThatNotAllCall) {
  EXPECT_TRUE(has(fault_of([] {
                    if (threadIdx.x < 40) __syncthreads();
                    if (threadIdx.x >= 40) __syncwarp();
                  }),
                  "deadlock"));
  EXPECT_TRUE(has(fault_of([] {
                    if (threadIdx.x % 2 == 0) __syncwarp();
                    if (threadIdx.x % 2 == 1) __shfl_sync(~0u, 1, 0);
                  }),
                  "different collectives"));
  EXPECT_TRUE(has(fault_of([] { __shfl_sync(1u, 1, 0); }), "not in the mask"));
}

TEST(EmulatedBlock, CopiesThatAreNotWaitedForAreNan) {
  DeviceArray<float> from(std::vector<float>(64, 2.0f));
  for (bool waits : {false, true}) {
    float got = 0;
    EXPECT_EQ(fault_of([&] {
                const auto* shared = static_cast<const float*>(dynamic_shared());
                if (threadIdx.x > 0) return;
                copy_async(shared_address(shared), from.data(), 16, 16);
                commit_copies();
                if (waits) wait_for_copies(0);
                got = shared[3];
              }),
              "none");
    EXPECT_EQ(std::isnan(got), !waits);
  }
}

}  // namespace
}  // namespace bev::cuda_emulation
