// The devices that tests run on. Suites that run on the GPU too are instantiated under the name
// Cuda; without one their tests are skipped.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace bev::test {

enum class TestDevice : std::uint8_t { kCpu, kCuda };

// Null where there is no such device.
const Kernels* find_device(TestDevice device);

}  // namespace bev::test
