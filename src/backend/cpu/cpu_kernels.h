// The CPU's kernel tables. The kernels exist once per x86-64 instruction level; the best one that
// this processor has is chosen at run time.
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
// Error of kind device when the level is not compiled in or not supported.
const Kernels& cpu_kernels(CpuLevel level);

}  // namespace bev
