// What is said of a rank's memory: a report while it trains, and what to do when there is too
// little.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "parallel/config.h"
#include "tensor/arena.h"
#include "train/config.h"

namespace bev {

// Megatron's line, then the peak by tag, and those of memory on the host; null: there is none.
std::string memory_text(const Arena& arena, std::span<const Arena* const> hosts, int rank,
                        std::int64_t iterations);

// Flags that need less memory than those given, as lines to follow an error.
std::string memory_cures(const BatchConfig& batch, const ParallelConfig& parallel);

}  // namespace bev
