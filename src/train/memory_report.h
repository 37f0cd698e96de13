// Memory report of a rank in training, and advice for out-of-memory errors.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "parallel/config.h"
#include "tensor/arena.h"
#include "train/config.h"

namespace bev {

// Megatron's line, then the peak by tag, then those of the host arenas (null entries are skipped).
std::string memory_text(const Arena& arena, std::span<const Arena* const> hosts, int rank,
                        std::int64_t iterations);

// Flags that would reduce memory, as lines to append to an error.
std::string memory_cures(const BatchConfig& batch, const ParallelConfig& parallel);

}  // namespace bev
