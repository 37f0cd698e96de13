#include "train/plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace bev {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

// No coordinate may be NaN, infinite or outside the picture.
void expect_sane(const std::string& svg) {
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  EXPECT_EQ(count(svg, "nan"), 0u);
  EXPECT_EQ(count(svg, "inf"), 0u);
  EXPECT_EQ(count(svg, "=\"-"), 0u);
}

TEST(AxisTicks, AreRoundNumbersInsideTheRange) {
  AxisTicks ticks = axis_ticks(0.0, 1.0, 5);
  EXPECT_DOUBLE_EQ(ticks.step, 0.2);
  ASSERT_EQ(ticks.values.size(), 6u);
  EXPECT_EQ(ticks.values[3], 3 * 0.2);
  ticks = axis_ticks(1.0, 1000.0, 9);
  EXPECT_EQ(ticks.values, (std::vector<double>{200, 400, 600, 800, 1000}));
  ticks = axis_ticks(-3.2, 11.1, 3);
  EXPECT_EQ(ticks.values, (std::vector<double>{0, 5, 10}));
  EXPECT_EQ(axis_ticks(2.0, 2.0, 5).values, (std::vector<double>{2.0}));
}

TEST(LossSvg, DrawsPointsLineAndValidation) {
  LossCurves curves{.title = "a < b & c", .train = {}, .validation = {{50, 4.0}, {100, 3.5}}};
  for (int i = 1; i <= 100; ++i) curves.train.push_back({double(i), 10.0 / std::sqrt(i)});
  std::string svg = loss_svg(curves);
  expect_sane(svg);
  EXPECT_EQ(count(svg, "<circle"), 102u);
  EXPECT_EQ(count(svg, "<path"), 3u);  // axes, training, validation
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  EXPECT_NE(svg.find(">validation 3.5000<"), std::string::npos);
  EXPECT_NE(svg.find(">train 1.0000<"), std::string::npos);  // the last point
  curves.final_loss = 1.25;
  EXPECT_NE(loss_svg(curves).find(">train 1.2500<"), std::string::npos);
  EXPECT_NE(svg.find(">iteration<"), std::string::npos);
}

TEST(LossSvg, LongRunsStaySmall) {
  LossCurves curves;
  for (int i = 0; i < 200000; ++i) curves.train.push_back({double(i), 3.0 + std::sin(i)});
  std::string svg = loss_svg(curves);
  expect_sane(svg);
  EXPECT_LE(count(svg, "<circle"), 1200u);
  EXPECT_LT(svg.size(), 100000u);
}

TEST(LossSvg, CopesWithFewAndBadPoints) {
  EXPECT_NE(loss_svg({}).find("no finite points"), std::string::npos);
  EXPECT_NE(loss_svg({.train = {{1, kNan}, {2, kInf}}}).find("no finite points"),
            std::string::npos);
  for (const LossCurves& curves :
       {LossCurves{.train = {{1, 5.0}}}, LossCurves{.train = {{1, 2.0}, {2, 2.0}, {3, 2.0}}},
        LossCurves{.train = {{1, 0.0}, {2, 0.0}}},
        LossCurves{.train = {{1, 5.0}, {2, kNan}, {3, -kInf}, {4, 1.0}}},
        LossCurves{.train = {}, .validation = {{7, 1e-9}}}}) {
    std::string svg = loss_svg(curves);
    expect_sane(svg);
    EXPECT_GE(count(svg, "<circle"), 1u);
  }
}

TEST(TerminalPlot, DrawsARisingLine) {
  std::vector<PlotPoint> points = {{0, 0}, {1, 1}};
  EXPECT_EQ(terminal_plot(points, {.title = "lr", .width = 20, .height = 4}),
            "lr\n"
            "         1 ┤      ⡠⠊\n"
            "           │    ⡠⠊  \n"
            "           │  ⡠⠊    \n"
            "         0 ┤⡠⠊      \n"
            "           └────────\n"
            "            0      1\n");
}

TEST(TerminalPlot, CopesWithFewAndBadPoints) {
  EXPECT_EQ(terminal_plot({}, {.title = "x"}), "x\n(no finite points)\n");
  std::vector<PlotPoint> one = {{3, 5}}, flat = {{0, 2}, {9, 2}},
                         gap = {{0, 1}, {1, kNan}, {2, kInf}, {3, 4}};
  for (const auto& points : {one, flat, gap}) {
    std::string text = terminal_plot(points, {.width = 40, .height = 5});
    EXPECT_EQ(count(text, "\n"), 7u);
    EXPECT_EQ(count(text, "nan"), 0u);
    EXPECT_GE(count(text, "\xE2\xA0") + count(text, "\xE2\xA1") + count(text, "\xE2\xA2") +
                  count(text, "\xE2\xA3"),
              1u);
  }
}

}  // namespace
}  // namespace bev
