// Textual syntax of parallel layouts: "tp2sp,pp2 dp4zero3" is two layouts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/config.h"

namespace bev {

// Space-separated layouts of tokens, joined by commas or directly:
//   tpN sp tpoverlap | ppN vppN groupN SCHEDULE [STAGES] | dpN zero1..zero3 instancesN gradoverlap
//   paramoverlap | cpN p2p a2a allgather a2aNp2pN | epN etpN | dpouter
// SCHEDULE is one of schedule_words().
// All other settings are those of `base`. Throws Error(kConfig) with the token and the known ones.
std::vector<ParallelConfig> parse_layouts(std::string_view text, const ParallelConfig& base);
// The words of all schedules but the default, such as zbh1 and zbv.
std::vector<std::string> schedule_words();
// Returns a text such as "tp2sp,pp2", or "1 rank" for the plain layout.
std::string layout_text(const ParallelConfig& layout);
// All combinations of axes, schedules, ZeRO stages and context-parallel exchanges with exactly
// `ranks` ranks. Some may not fit a given model.
std::vector<ParallelConfig> all_layouts(std::int64_t ranks, const ParallelConfig& base);
// The layouts, and their variants with every expert-parallel size, with etp equal to tp or 1.
std::vector<ParallelConfig> with_experts(const std::vector<ParallelConfig>& layouts);

}  // namespace bev
