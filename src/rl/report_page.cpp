#include "rl/report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/markup.h"
#include "base/text.h"
#include "train/series_plot.h"

namespace bev {

namespace {

struct Drawing {
  const char* title;
  std::vector<const char*> metrics;
};

std::vector<Drawing> drawings() {
  return {
      {"Reward", {"reward", "reward_std"}},
      {"Tokens of a completion", {"completions/mean_length", "completions/mean_terminated_length"}},
      {"KL divergence from the reference", {"kl"}},
      {"Entropy of the sampled tokens", {"entropy"}},
      {"Share of tokens that are clipped", {"clip_ratio/low_mean", "clip_ratio/high_mean"}},
      {"Share of groups of one reward, and of completions without end",
       {"frac_reward_zero_std", "completions/clipped_ratio"}},
      {"Difference of log-probabilities in sampling and training", {"rollout/logprob_diff_max"}},
      {"Gradient norm", {"grad_norm"}}};
}

std::string drawing_of(const MetricsFile& file, const Drawing& drawing) {
  const std::vector<std::string> there = file.metrics();
  SeriesPlot plot{.title = drawing.title, .x_label = "iteration", .series = {}};
  for (const char* metric : drawing.metrics) {
    if (std::ranges::find(there, metric) == there.end()) continue;
    for (PlotSeries& series : file.series(metric, PlotAxis::kIteration)) {
      series.name = metric;
      plot.series.push_back(std::move(series));
    }
  }
  return plot.series.empty() ? "" : concat("<figure>", series_svg(plot), "</figure>\n");
}

}  // namespace

std::string report_page(const MetricsFile& metrics, std::span<const PageSample> samples) {
  std::string page =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Reinforcement "
      "learning</title>\n<style>body{font-family:sans-serif;max-width:60em;margin:2em auto}"
      "svg{width:100%;height:auto}td,th{padding:.3em .6em;text-align:left;vertical-align:top;"
      "border-top:1px solid #ccc}pre{white-space:pre-wrap;margin:0}</style></head><body>\n"
      "<h1>Reinforcement learning</h1>\n";
  for (const Drawing& drawing : drawings()) page += drawing_of(metrics, drawing);
  page +=
      "<h2>Samples</h2>\n<table><tr><th>step</th><th>reward</th><th>prompt</th>"
      "<th>completion</th></tr>\n";
  constexpr std::size_t kShown = 12;
  const std::size_t count = std::min(kShown, samples.size());
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t at = count > 1 ? i * (samples.size() - 1) / (count - 1) : 0;
    const PageSample& sample = samples[at];
    std::string reward = std::isnan(sample.reward) ? "none" : fmt::format("{:.3g}", sample.reward);
    page += fmt::format(
        "<tr><td>{}</td><td>{}</td><td><pre>{}</pre></td><td><pre>{}</pre></td></tr>\n",
        sample.step, reward, escape_markup(sample.prompt), escape_markup(sample.completion));
  }
  return page + "</table>\n</body></html>\n";
}

}  // namespace bev
