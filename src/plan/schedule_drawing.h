// Pictures of a pipeline schedule over time: one row per rank, as text and as SVG.
#pragma once

#include <string>

#include "parallel/schedule_player.h"

namespace bev {

// "interleaved 1f1b".
std::string schedule_name(const PipelineShape& shape);

// A cell per unit of time (the shortest computation): "F3", "B3", "W3" and dots where a rank waits;
// a letter after the number is the stage of the rank. Ends with peak and bubble.
std::string schedule_text(const PipelineShape& shape, const ScheduleReport& report,
                          std::int64_t micro_batches);

// Self-contained: a box per computation with its micro-batch, colours by kind, shades by stage of
// the rank, time scale and legend.
std::string schedule_svg(const PipelineShape& shape, const ScheduleReport& report,
                         std::int64_t micro_batches);

}  // namespace bev
