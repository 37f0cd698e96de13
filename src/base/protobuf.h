// How a field of a protobuf message is written: the low three bits of its key.
#pragma once

#include <cstdint>

namespace bev {

enum class ProtobufWire : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

}  // namespace bev
