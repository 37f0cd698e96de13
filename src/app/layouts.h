// Layouts as text: "tp2sp,pp2 dp4zero3" is two layouts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/config.h"
#include "parallel/config.h"

namespace bev {

// Space-separated layouts of tokens, joined by commas or directly: tpN, ppN, dpN, sp, zero1..zero3.
// Everything else in the result is `base`'s. Error(kConfig) naming the token and what is known.
std::vector<ParallelConfig> parse_layouts(std::string_view text, const ParallelConfig& base);
// "tp2sp,pp2"; "1 rank" for none.
std::string layout_text(const ParallelConfig& layout);
// Every layout of exactly so many ranks that the model can be cut into.
std::vector<ParallelConfig> all_layouts(std::int64_t ranks, const ModelConfig& model,
                                        const ParallelConfig& base);

}  // namespace bev
