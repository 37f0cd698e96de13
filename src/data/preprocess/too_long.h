// Policy for conversations longer than a sample.
#pragma once

#include <cstdint>

namespace bev {

enum class TooLong : std::uint8_t { kCut, kDrop };

}  // namespace bev
