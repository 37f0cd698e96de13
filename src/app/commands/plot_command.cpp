// plot: a metric of several runs in one drawing.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "app/options.h"
#include "app/recorded_run.h"
#include "app/run_folder.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/log.h"
#include "base/output.h"
#include "infer/text_stream.h"
#include "train/metrics_file.h"
#include "train/series_plot.h"

namespace bev {

namespace {

struct PlotOptions {
  std::vector<std::string> runs;
  std::string metric = "loss";
  PlotAxis x = PlotAxis::kIteration;
  bool log_y = false;
  std::string output;

  void fields(FieldList& list) {
    list.section("plot");
    list.add("runs", runs, "folders of runs, or files of --metrics-out; also without the flag");
    list.add("metric", metric,
             "what to draw: a key of the metrics (loss, grad_norm, lr, tokens_per_second, ...), or "
             "validation, test, validation_perplexity, test_perplexity");
    list.add("x", x,
             {{"iteration", PlotAxis::kIteration},
              {"tokens", PlotAxis::kTokens},
              {"time", PlotAxis::kTime}},
             "over iterations, tokens seen, or seconds spent in iterations");
    list.add("log-y", log_y, "logarithmic axis for the metric");
    list.add("output", output, "SVG file to write");
  }
};

const char* axis_label(PlotAxis axis) {
  return axis == PlotAxis::kTokens ? "tokens" : axis == PlotAxis::kTime ? "seconds" : "iteration";
}

// A name that XML and JSON can hold.
std::string shown_name(const std::string& word) {
  std::string name = replace_invalid_utf8(word);
  std::ranges::replace_if(
      name, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  return name;
}

std::vector<PlotSeries> read_runs(const PlotOptions& wanted) {
  std::vector<PlotSeries> all;
  for (const std::string& word : wanted.runs) {
    std::string file = is_directory(word) ? metrics_of_run(word) : word;
    std::vector<PlotSeries> sets = MetricsFile(file).series(wanted.metric, wanted.x);
    for (PlotSeries& series : sets) {
      series.name = shown_name(sets.size() == 1 ? word : concat(word, " ", series.name));
      all.push_back(std::move(series));
    }
  }
  return all;
}

void warn_of_left_out(const PlotSeries& series, bool log_y) {
  if (!log_y) return;
  auto count = std::ranges::count_if(
      series.points, [](const PlotPoint& point) { return std::isfinite(point.y) && point.y <= 0; });
  if (count == 0) return;
  log_warning(concat("--log-y: ", count, count == 1 ? " value" : " values", " of ", series.name,
                     count == 1 ? " is" : " are", " not above 0 and left out of the drawing"));
}

// The series as JSON, and on a terminal also as text.
void print_series(const PlotOptions& wanted, const std::vector<PlotSeries>& all) {
  using Json = nlohmann::ordered_json;
  Json rows = Json::array();
  std::string text;
  for (const PlotSeries& series : all) {
    auto last = std::find_if(series.points.rbegin(), series.points.rend(), is_finite);
    rows.push_back({{"run", series.name},
                    {"points", std::ranges::count_if(series.points, is_finite)},
                    {"last", last == series.points.rend() ? Json() : Json(last->y)}});
    text += terminal_plot(series.points, {concat(series.name, ": ", wanted.metric)});
  }
  if (::isatty(STDOUT_FILENO) == 1) write_stdout(text);
  Json result{{"series", std::move(rows)}, {"output", wanted.output}};
  write_stdout(result.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

int run_plot(PlotOptions& wanted, const CommandInput& input) {
  Options& options = input.options;
  std::vector<std::string> problems;
  std::string first = wanted.runs.empty() ? "" : wanted.runs[0];
  need(first, "--runs", "folders of runs or files of --metrics-out", problems);
  need(wanted.output, "--output", "the SVG file to write", problems);
  options.add_problems(problems);
  options.throw_problems();
  if (input.launch.process != 0) return kExitOk;
  std::vector<PlotSeries> all = read_runs(wanted);
  for (const PlotSeries& series : all) warn_of_left_out(series, wanted.log_y);
  make_directories(parent_path(wanted.output));
  write_file(wanted.output,
             series_svg({shown_name(wanted.metric), axis_label(wanted.x), wanted.log_y, all}));
  print_series(wanted, all);
  return kExitOk;
}

}  // namespace

const Command kPlotCommand = {
    .name = "plot",
    .summary = "a metric of several runs in one drawing",
    .examples =
        "bevatron plot RUN_A RUN_B --output loss.svg\n"
        "bevatron plot RUN_A RUN_B --metric validation --x tokens --log-y --output valid.svg",
    .call = call_of<PlotOptions, run_plot>,
    .words = "runs"};

}  // namespace bev
