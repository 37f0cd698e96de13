#include "plan/schedule_drawing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bev {
namespace {

using Kind = PipelineSchedule;
using testing::HasSubstr;

ScheduleReport play(const PipelineShape& shape, std::int64_t micro_batches,
                    const ActionCosts& costs = {}) {
  return play_schedules(shape, make_schedules(shape, micro_batches), micro_batches, true, costs);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST(ScheduleText, DrawsARowPerRank) {
  PipelineShape plain{2, 1, Kind::k1F1B, 0};
  EXPECT_EQ(schedule_text(plain, play(plain, 2), 2),
            "1f1b: 2 ranks, 2 micro-batches\n"
            "rank 0  F0 F1 .  .  B0 -- .  B1 --\n"
            "rank 1  .  F0 B0 -- F1 B1 -- .  .\n"
            "33.3 % bubble in 9 units of time\n"
            "activations held at most, by rank: 2 1 (micro-batches)\n");
  PipelineShape v{2, 2, Kind::kZeroBubbleV, 0};
  EXPECT_EQ(schedule_text(v, play(v, 1), 1),
            "zb-v: 2 ranks x 2 stages, 1 micro-batch\n"
            "rank 0  F0a .   .   F0b B0b W0b .   B0a W0a\n"
            "rank 1  .   F0a F0b .   .   B0b B0a W0a W0b\n"
            "33.3 % bubble in 9 units of time\n"
            "activations held at most, by rank: 2 2 (micro-batches x stages)\n");
}

TEST(ScheduleText, ScalesWithTheTimesOfComputations) {
  PipelineShape shape{1, 1, Kind::kZeroBubbleH1, 0};
  EXPECT_THAT(schedule_text(shape, play(shape, 1, {0.5, 1.0, 0.75}), 1),
              HasSubstr("rank 0  F0 B0 -- W0 --\n0.0 % bubble in 2.25 units"));
}

TEST(ScheduleSvg, HasABoxForEachComputation) {
  for (PipelineShape shape :
       {PipelineShape{4, 1, Kind::k1F1B, 0}, PipelineShape{4, 3, Kind::k1F1B, 0},
        PipelineShape{3, 1, Kind::kZeroBubbleH1, 0}, PipelineShape{4, 2, Kind::kZeroBubbleV, 0}}) {
    ScheduleReport report = play(shape, 6);
    std::string svg = schedule_svg(shape, report, 6);
    EXPECT_EQ(svg.rfind("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=", 0), 0u);
    EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
    std::size_t boxes = 0;
    for (const auto& row : report.timeline) boxes += row.size();
    EXPECT_EQ(count(svg, "<g><title>"), boxes);
    EXPECT_EQ(count(svg, "<g>"), count(svg, "</g>"));
    for (const char* wrong : {"nan", "inf", "=\"-"}) EXPECT_EQ(count(svg, wrong), 0u) << wrong;
    EXPECT_THAT(svg, HasSubstr(schedule_name(shape) + ": "));
    EXPECT_THAT(svg, HasSubstr("% bubble in"));
    EXPECT_EQ(count(svg, ">backward of weights</text>"), shape.schedule == Kind::k1F1B ? 0u : 1u);
    EXPECT_EQ(count(svg, "lighter: later stage"), shape.chunks > 1 ? 1u : 0u);
  }
}

}  // namespace
}  // namespace bev
