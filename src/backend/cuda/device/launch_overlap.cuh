// Programmatic dependent launch (sm_90 and later): a kernel may begin while the one before it on
// the stream still runs, if that one allows it. Nothing on older devices.
#pragma once

#include <cstddef>

#include "backend/cuda/runtime/queue.h"

namespace bev::cuda {

// Allows the next kernel to begin once all blocks of this one have called it or have ended.
__device__ inline void allow_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the results of the kernel before are complete and visible. Every thread of a kernel
// that is launched to overlap calls it before it reads or writes what others use.
__device__ inline void wait_for_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The first statement of small kernels that are launched to overlap: the next one may begin, while
// this one waits for its input.
__device__ inline void join_kernel_chain() {
  allow_next_kernel();
  wait_for_kernel_before();
}

// Launches a kernel that may overlap the one before it, if a graph is being captured where that is
// known to be one; launches outside of graphs are not worth it.
template <class... Params, class... Args>
void launch_overlapped(const CudaQueue& queue, const char* name, void (*kernel)(Params...),
                       dim3 blocks, dim3 threads, std::size_t shared_bytes, const Args&... args) {
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = queue.stream();
  config.attrs = &overlap;
  config.numAttrs = queue.captures_behind_kernel() ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, args...), name);
}

}  // namespace bev::cuda
