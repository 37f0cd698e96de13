// What tests may know of the fake device.
#pragma once

#include <cstdint>

namespace bev {

// Requests for device memory of the calling thread so far.
std::int64_t fake_allocations();

}  // namespace bev
