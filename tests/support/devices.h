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
// Null if there is no such device.
const Kernels* find_device(TestDevice device);

}  // namespace bev::test
