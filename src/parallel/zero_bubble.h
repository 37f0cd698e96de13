// The order of computations in schedules that split the backward: the gradient of the input goes
// on to the stage before at once, the weights' work fills what would be waiting.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/schedule.h"

namespace bev {

// ZB-H1: 1F1B's order in which rank r puts the weights' work off by r micro-batches, so that every
// rank holds as many as the first one. The bubble of M >= P micro-batches is (P - 1)(F + B - W).
Schedule zero_bubble_h1(std::int64_t ranks, std::int64_t rank, std::int64_t micro_batches);

// ZB-V: two stages on each rank, down the ranks and up again. All ranks' lists, made by playing
// computations of equal length and giving each rank the most urgent one it can do within the memory
// of 1F1B.
std::vector<Schedule> zero_bubble_v(const PipelineShape& shape, std::int64_t micro_batches);

}  // namespace bev
