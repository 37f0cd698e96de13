// Devices that tests run on. Suites that also run on the GPU are instantiated under the name Cuda;
// their tests are skipped without one.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace bev::test {

enum class TestDevice : std::uint8_t { kCpu, kCuda };

// The kinds of device that this build has code for.
std::vector<TestDevice> built_devices();
// Null if there is no such device. With BEV_LIMIT_ARCH=80 in the environment, GPUs choose kernels
// as one of that architecture does.
const Kernels* find_device(TestDevice device);
// Whether the GPU, under the limit, has an architecture from `arch` on.
bool gpu_has_arch(int arch);

}  // namespace bev::test
