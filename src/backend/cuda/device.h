// CUDA devices and their kernel tables; needs no CUDA header.
#pragma once

#include <string>

#include "kernels/kernels.h"

namespace bev {

// Number of usable devices; 0 without a driver.
int cuda_device_count();

// Architecture that kernels are chosen for on a device: its own (90 for compute capability 9.0) or
// the limit, which is at most that; 0: no limit.
int cuda_arch(int device, int limit);

// Name of a device for people: "NVIDIA A100 (compute capability 8.0)".
std::string cuda_device_name(int device);
// Its memory in bytes.
double cuda_device_memory(int device);

// Throws Error(kConfig) with its name if a device has no kernel in this program.
void check_cuda_devices();

// Architectures that this program has kernels for: "80 90a".
std::string cuda_archs();

const Kernels& cuda_kernels();
// Exact tables: in a forward the bits of a row (token) depend on the weights and on that row, with
// the keys before it, but not on the other rows of a call or on how a sequence is cut into calls.
// Excepted are FP8 scales per tensor, Sinkhorn routing, and what drops tokens by their load.
const Kernels& cuda_exact_kernels();

}  // namespace bev
