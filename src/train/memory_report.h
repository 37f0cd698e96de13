// Memory report of a rank in training.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tensor/arena.h"

namespace bev {

// Megatron's line, then the peak by tag, then those of the host arenas (null entries are skipped).
std::string memory_text(const Arena& arena, std::span<const Arena* const> hosts, int rank,
                        std::int64_t iterations);

}  // namespace bev
