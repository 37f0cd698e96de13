// CPU kernel tables. The kernels are compiled once per x86-64 instruction level; the best level
// that the processor supports is selected at run time.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace bev {

enum class CpuLevel : std::uint8_t {
  kV2,  // the baseline; the only level on other architectures
  kV3,  // AVX2, FMA
  kV4,  // AVX-512
};

// The highest level that is both compiled in and supported here.
CpuLevel best_cpu_level();

const Kernels& cpu_kernels();
// Throws Error(kDevice) if the level is not compiled in or not supported.
const Kernels& cpu_kernels(CpuLevel level);

// Exact tables: in a forward the bits of a row (token) depend on the weights and on that row, with
// the keys before it, but not on the other rows of a call, the number of threads, or how a sequence
// is cut into calls. Excepted are FP8 scales per tensor and what drops tokens by their load.
const Kernels& cpu_exact_kernels();
const Kernels& cpu_exact_kernels(CpuLevel level);

}  // namespace bev
