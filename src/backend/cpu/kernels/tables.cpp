// The kernel tables of one instruction level.
#include "backend/cpu/kernels/tables.h"

#include "backend/cpu/device.h"
#include "backend/cpu/sampling.h"
#include "kernels/fill_tables.h"
#include "kernels/tables.h"

namespace bev::cpu::BEV_CPU_LEVEL {

DeviceKernels kernel_table(Family<DeviceKernels>) { return cpu_device_kernels(); }
SamplingKernels kernel_table(Family<SamplingKernels>) { return cpu_sampling_kernels(); }

template <class Table>
Table make_table() {
  Table kernel_table(Family<Table>);
  return kernel_table(Family<Table>());
}

namespace {
struct Tables {
  template <class Table>
  operator const Table&() const {
    static const Table table = make_table<Table>();
    return table;
  }
};
}  // namespace

const Kernels& kernels() {
  static const Kernels kernels = fill_members<Kernels>(Tables(), fill, cast);
  return kernels;
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
