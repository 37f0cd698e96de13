// Checksums of checkpoints: XXH3 with 64 bits. It runs at the speed of memory on any processor, has
// a tool that everybody can install (xxhsum), and twice the bits of crc32c, of whose blocks a large
// checkpoint has millions.
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
