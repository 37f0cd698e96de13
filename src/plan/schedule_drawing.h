// Drawings of a pipeline schedule over time: one row per rank, as text and as SVG.
#pragma once

#include <string>

#include "parallel/pipeline/schedule_player.h"

namespace bev {

// For example "interleaved 1f1b".
std::string schedule_name(const PipelineShape& shape);

// One cell per unit of time (the shortest computation): "F3", "B3", "W3", and dots where a rank is
// idle; a letter after the number is the stage within the rank. Ends with the bubble and the peak.
std::string schedule_text(const PipelineShape& shape, const ScheduleReport& report,
                          std::int64_t micro_batches);

// Self-contained SVG: a box per computation with its micro-batch, coloured by kind, shaded by stage
// within the rank, with time scale and legend.
std::string schedule_svg(const PipelineShape& shape, const ScheduleReport& report,
                         std::int64_t micro_batches);

}  // namespace bev
