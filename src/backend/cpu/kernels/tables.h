// The kernel tables of one instruction level (v2, v3 or v4). Every source in this folder is
// compiled once per level; what it defines lies in the level's namespace. The source of a family
// defines kernel_table(Family<Table>), which fills in its table.
#pragma once

#include "kernels/kernels.h"

namespace bev::cpu::BEV_CPU_LEVEL {

void fill(const Stream&, const View& x, double value);
void cast(const Stream&, const View& from, const View& to);

const Kernels& kernels();
const Kernels& exact_kernels();  // see cpu_exact_kernels()

}  // namespace bev::cpu::BEV_CPU_LEVEL
