// The gated delta rule, which runs on the CPU only.
#include "kernels/delta_rule.h"

#include "backend/cuda/tables.h"
#include "base/error.h"
#include "kernels/fill_tables.h"

namespace bev {

namespace {

// Converts to any kernel: a function that refuses.
struct CpuOnly {
  template <class... Args>
  using Kernel = void (*)(Args...);
  template <class... Args>
  constexpr operator Kernel<Args...>() const {
    return [](Args...) {
      BEV_FAIL(ErrorKind::kConfig,
               "--device cuda: the kernels of gated delta layers run on the CPU only; give "
               "--device cpu");
    };
  }
};

}  // namespace

DeltaRuleKernels cuda_table(Family<DeltaRuleKernels>) {
  return fill_members<DeltaRuleKernels>(CpuOnly());
}

}  // namespace bev
