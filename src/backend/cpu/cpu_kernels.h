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

}  // namespace bev
