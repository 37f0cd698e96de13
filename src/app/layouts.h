// Layouts as text: "tp2sp,pp2 dp4zero3" is two layouts.
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
// Everything else in the result is `base`'s. Error(kConfig) naming the token and what is known.
std::vector<ParallelConfig> parse_layouts(std::string_view text, const ParallelConfig& base);
// The words of all schedules but the default: zbh1, zbv.
std::vector<std::string> schedule_words();
// "tp2sp,pp2"; "1 rank" for none.
std::string layout_text(const ParallelConfig& layout);
// Every combination of axes, schedules, sharding strategies and exchanges of exactly so many ranks,
// whether a model can be cut so or not.
std::vector<ParallelConfig> all_layouts(std::int64_t ranks, const ParallelConfig& base);
// Each of them, and with every ep, experts being whole or cut as the rest of the model is.
std::vector<ParallelConfig> with_experts(const std::vector<ParallelConfig>& layouts);

}  // namespace bev
