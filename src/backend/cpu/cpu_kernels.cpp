// Selection of the CPU kernel tables by instruction level.
#include "backend/cpu/cpu_kernels.h"

#include "base/error.h"

namespace bev {

namespace cpu {
namespace v2 {
const Kernels& kernels();
const Kernels& exact_kernels();
}  // namespace v2
namespace v3 {
const Kernels& kernels();
const Kernels& exact_kernels();
}  // namespace v3
namespace v4 {
const Kernels& kernels();
const Kernels& exact_kernels();
}  // namespace v4
}  // namespace cpu

namespace {
#if defined(BEV_CPU_HAS_V3) || defined(BEV_CPU_HAS_V4)
// What the CPU supports, compiled in or not: a build may have either level in addition to v2.
bool runs_v3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("lzcnt") &&
         __builtin_cpu_supports("movbe");
}
#endif

bool has_v3() {
#if defined(BEV_CPU_HAS_V3)
  return runs_v3();
#else
  return false;
#endif
}

bool has_v4() {
#if defined(BEV_CPU_HAS_V4)
  return runs_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

const Kernels& kernels_of(CpuLevel level, bool exact) {
#if defined(BEV_CPU_HAS_V4)
  if (level == CpuLevel::kV4) return exact ? cpu::v4::exact_kernels() : cpu::v4::kernels();
#endif
#if defined(BEV_CPU_HAS_V3)
  if (level == CpuLevel::kV3) return exact ? cpu::v3::exact_kernels() : cpu::v3::kernels();
#endif
  BEV_CHECK(level == CpuLevel::kV2, ErrorKind::kInternal, "cpu kernels: level not compiled in");
  return exact ? cpu::v2::exact_kernels() : cpu::v2::kernels();
}

const Kernels& checked_kernels(CpuLevel level, bool exact) {
  bool there = level == CpuLevel::kV4 ? has_v4() : level == CpuLevel::kV3 ? has_v3() : true;
  BEV_CHECK(there, ErrorKind::kDevice, "cpu kernels: level v", static_cast<int>(level) + 2,
            " is not available, the best here is v", static_cast<int>(best_cpu_level()) + 2);
  return kernels_of(level, exact);
}
}  // namespace

CpuLevel best_cpu_level() {
  if (has_v4()) return CpuLevel::kV4;
  return has_v3() ? CpuLevel::kV3 : CpuLevel::kV2;
}

const Kernels& cpu_kernels() { return cpu_kernels(best_cpu_level()); }
const Kernels& cpu_kernels(CpuLevel level) { return checked_kernels(level, false); }

const Kernels& cpu_exact_kernels() { return cpu_exact_kernels(best_cpu_level()); }
const Kernels& cpu_exact_kernels(CpuLevel level) { return checked_kernels(level, true); }

}  // namespace bev
