#include "train/metrics_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A run that was killed after iteration 4, resumed from 2 and killed while it wrote.
constexpr char kResumed[] = R"({"iteration":1,"consumed_tokens":10,"loss":5,"elapsed_ms":100}
{"iteration":2,"consumed_tokens":20,"loss":4,"elapsed_ms":100,"routers":[{"layer":0}]}
{"iteration":2,"split":"valid","name":"books","loss":4.5,"perplexity":90}
{"iteration":2,"split":"valid","name":"web","loss":4.25,"perplexity":70}
{"iteration":3,"consumed_tokens":30,"loss":9,"elapsed_ms":100}
{"iteration":4,"consumed_tokens":40,"loss":9,"elapsed_ms":100}
{"iteration":4,"split":"valid","name":"books","loss":9,"perplexity":9}

{"iteration":3,"consumed_tokens":31,"loss":null,"elapsed_ms":400}
{"iteration":4,"consumed_tokens":41,"loss":NaN,"elapsed_ms":100,"note":"NaN"}
{"iteration":5,"consumed_tokens":51,"loss":-2,"elapsed_ms":100}
{"iteration":6,"consumed_to)";

std::vector<double> x_of(const PlotSeries& series) {
  std::vector<double> out;
  for (const PlotPoint& point : series.points) out.push_back(point.x);
  return out;
}

std::string failure(const MetricsFile& file, std::string_view metric, PlotAxis axis) {
  try {
    file.series(metric, axis);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    return error.what();
  }
  return "";
}

TEST(MetricsFile, LaterRowsReplaceThoseOfAKilledRun) {
  TempFolder folder;
  folder.write("m", kResumed);
  MetricsFile file(folder.path("m"));
  PlotSeries loss = file.series("loss", PlotAxis::kTokens).at(0);
  EXPECT_THAT(x_of(loss), ElementsAre(10, 20, 31, 41, 51));
  EXPECT_TRUE(std::isnan(loss.points[2].y) && std::isnan(loss.points[3].y));
  EXPECT_EQ(loss.points[4].y, -2);
  PlotSeries time = file.series("loss", PlotAxis::kTime).at(0);
  EXPECT_NEAR(time.points.back().x, 0.8, 1e-12);
}

TEST(MetricsFile, EverySetOfAnEvaluationIsASeries) {
  TempFolder folder;
  folder.write("m", kResumed);
  MetricsFile file(folder.path("m"));
  for (const char* name : {"validation", "valid", "validation-loss"}) {
    std::vector<PlotSeries> sets = file.series(name, PlotAxis::kTokens);
    ASSERT_EQ(sets.size(), 2u);
    EXPECT_EQ(sets[0].name, "books");
    EXPECT_THAT(x_of(sets[0]), ElementsAre(20));
    EXPECT_EQ(sets[1].points[0].y, 4.25);
  }
  EXPECT_EQ(file.series("validation_perplexity", PlotAxis::kIteration)[1].points[0].y, 70);
}

TEST(MetricsFile, SaysWhatThereIs) {
  TempFolder folder;
  folder.write("m", kResumed);
  MetricsFile file(folder.path("m"));
  std::string text = failure(file, "lss", PlotAxis::kIteration);
  EXPECT_THAT(text, HasSubstr("no metric 'lss'; there are consumed_tokens, loss, elapsed_ms"));
  EXPECT_THAT(text, HasSubstr("validation, validation_perplexity"));
  EXPECT_THAT(text, Not(HasSubstr("routers")));
  folder.write("old", "{\"iteration\":1,\"loss\":5}\n");
  MetricsFile old(folder.path("old"));
  EXPECT_THAT(failure(old, "loss", PlotAxis::kTokens), HasSubstr("no consumed_tokens"));
  folder.write("empty", "");
  EXPECT_THAT(failure(MetricsFile(folder.path("empty")), "loss", PlotAxis::kIteration),
              HasSubstr("no rows yet"));
  for (const char* bad : {"{\"iteration\":1}\nhello\n{\"iteration\":2}\n", "[1]\n", "{}\n{}\n",
                          "{\"iteration\":\"1\"}\n"}) {
    folder.write("bad", bad);
    EXPECT_THROW(MetricsFile(folder.path("bad")), Error) << bad;
  }
}

TEST(SeriesPlot, LogAxesLeaveOutWhatTheyDoNotHave) {
  SeriesPlot plot{"loss", "iteration", true, {}};
  plot.series.push_back({"a<b&c\"", {{1, 100}, {2, 0}, {3, -1}, {4, NAN}, {5, 0.01}}});
  plot.series.push_back({"one", {{3, 1}}});
  plot.series.push_back({"none", {{3, 0}}});
  std::string svg = series_svg(plot);
  EXPECT_THAT(svg, HasSubstr("a&lt;b&amp;c&#34;: 0.01"));
  EXPECT_THAT(svg, HasSubstr("<circle"));  // a line of one point
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_THAT(svg, Not(HasSubstr("no points to draw")));
  EXPECT_THAT(series_svg({"", "", true, {{"x", {{1, 0}}}}}), HasSubstr("no points to draw"));
  EXPECT_THAT(series_svg({"", "", true, {{"x", {{1, 3}, {2, 3}}}}}), Not(HasSubstr("nan")));
}

TEST(SeriesPlot, ManyRunsAreToldApart) {
  SeriesPlot plot;
  for (int i = 0; i < 12; ++i) {
    plot.series.push_back({concat("run ", i), {{0, 1.0 * i}, {1, 2.0 * i}}});
  }
  std::string svg = series_svg(plot);
  EXPECT_THAT(svg, HasSubstr("stroke-dasharray"));
  EXPECT_THAT(svg, HasSubstr("run 11: 22"));
}

}  // namespace
}  // namespace bev
