// Trials of GEMM kernels: operands whose sums show the order of their terms, and comparison.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/random.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/gemm/exact_check.h"

namespace bev::cuda {

namespace {

// (1 + fraction) 2^e with e from kLeast on: sums of many products stay below the largest f16.
template <class T>
__global__ void __launch_bounds__(kThreads) trial_kernel(const TrialOperand operand) {
  constexpr int kLeast = -10, kExponents = 13;
  const std::int64_t i = own_pack();
  if (i >= operand.rows * operand.stride) return;
  const std::int64_t row = i / operand.stride, column = i % operand.stride;
  const std::int64_t half = operand.columns / 2;
  const bool second = column >= half;
  float value = 0;  // of an odd last column, and of padding
  if (column < 2 * half) {
    const std::int64_t pair = row * half + (second ? column - half : column);
    const uint4 words = philox_block(static_cast<std::uint64_t>(pair), operand.key);
    const int exponent = operand.exponent + kLeast + static_cast<int>(words.y % kExponents);
    value = ldexpf(1 + uniform_of(words.x), exponent);
    if (((words.z & 1) != 0) != (second && operand.negated)) value = -value;
  }
  static_cast<T*>(operand.data)[i] = narrow<T>(value);
}

__global__ void __launch_bounds__(kThreads)
    differences_kernel(const std::uint16_t* a, const std::uint16_t* b, std::int64_t words,
                       int* flag) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  bool differ = false;
  for (std::int64_t i = own_pack(); i < words; i += step) differ |= a[i] != b[i];
  if (__any_sync(0xffffffffu, differ) && threadIdx.x % kWarp == 0) *flag = 1;
}

}  // namespace

void fill_trial(CudaQueue& queue, const TrialOperand& operand) {
  visit_value(operand.dtype, [&](auto type) {
    const std::int64_t count = operand.rows * operand.stride;
    trial_kernel<decltype(type)>
        <<<static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0, queue.stream()>>>(
            operand);
  });
  check_launch("trial of kernels");
}

bool are_equal(CudaQueue& queue, const void* a, const void* b, std::size_t bytes, int* flag) {
  check_cuda(cudaMemsetAsync(flag, 0, sizeof(*flag), queue.stream()), "compare results");
  const auto words = static_cast<std::int64_t>(bytes / 2);
  const std::int64_t blocks =
      std::min<std::int64_t>(ceil_div(words, kThreads), 8 * queue.multiprocessors());
  differences_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, queue.stream()>>>(
      static_cast<const std::uint16_t*>(a), static_cast<const std::uint16_t*>(b), words, flag);
  check_launch("compare results");
  int differ = 0;
  check_cuda(cudaMemcpyAsync(&differ, flag, sizeof(differ), cudaMemcpyDefault, queue.stream()),
             "compare results");
  queue.wait_for_all();
  return differ == 0;
}

}  // namespace bev::cuda
