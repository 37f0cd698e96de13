// The kernels of recurrent mixers, which run on the CPU only.
#include "kernels/recurrent.h"

#include "backend/cuda/tables.h"
#include "base/error.h"
#include "kernels/delta_rule.h"
#include "kernels/fill_tables.h"
#include "kernels/ssd.h"

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
               "--device cuda: the kernels of Mamba-2 and gated delta layers run on the CPU only; "
               "give --device cpu");
    };
  }
};

}  // namespace

RecurrentKernels cuda_table(Family<RecurrentKernels>) {
  return fill_members<RecurrentKernels>(CpuOnly());
}
SsdKernels cuda_table(Family<SsdKernels>) { return fill_members<SsdKernels>(CpuOnly()); }
DeltaRuleKernels cuda_table(Family<DeltaRuleKernels>) {
  return fill_members<DeltaRuleKernels>(CpuOnly());
}

}  // namespace bev
