// XXH3 with 64 bits: checks bytes at the speed of memory on any processor, where crc32c needs
// instructions that not all have and a checksum of a few bits more work per byte; both find every
// fault that is not made on purpose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace bev {

std::uint64_t checksum(std::span<const std::byte> bytes);
// Sixteen digits in base 16, as xxhsum prints it.
std::string checksum_text(std::uint64_t sum);

}  // namespace bev
