// Training, validation and test splits.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace bev {

enum class DataSplit : std::uint8_t { kTrain, kValid, kTest };
const char* name_of(DataSplit split);

// Divides [0, total) by one to three weights ("969,30,1"): split i is [bounds[i], bounds[i + 1]).
// Bounds are the cumulative shares rounded half to even, as in Megatron. Throws Error(kConfig) for
// any other text.
std::array<std::int64_t, 4> split_bounds(std::string_view weights, std::int64_t total);

}  // namespace bev
