// Checkpoint checksums: 64-bit XXH3. It runs at memory speed on any CPU, xxhsum is widely
// available, and 64 bits keep collisions unlikely over the millions of blocks of a large
// checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace bev {

std::uint64_t checksum(std::span<const std::byte> bytes);
// Sixteen hexadecimal digits, as xxhsum prints them.
std::string checksum_text(std::uint64_t sum);

}  // namespace bev
