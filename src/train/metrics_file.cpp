#include "train/metrics_file.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "base/text.h"

namespace bev {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kIteration = "iteration";
constexpr const char* kSplit = "split";
constexpr const char* kPerplexity = "_perplexity";

bool is_row(const Json& row) {
  return row.is_object() && row.contains(kIteration) && row[kIteration].is_number_integer();
}
std::int64_t iteration_of(const Json& row) { return row[kIteration].get<std::int64_t>(); }

std::string text_of(const Json& row, const char* key) {
  auto found = row.find(key);
  return found != row.end() && found->is_string() ? found->get<std::string>() : "";
}

// Infinity and NaN of Python are such marks (mark_python_numbers()).
bool is_mark(const Json& value) {
  return value.is_string() && value.get_ref<const std::string&>().starts_with('\x01');
}
bool is_value(const Json& value) {
  return value.is_number() || value.is_null() || value.is_boolean() || is_mark(value);
}
double number_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}
double number_at(const Json& row, const char* key) {
  auto found = row.find(key);
  return number_of(found == row.end() ? Json() : *found);
}

// "valid" and "validation" are one split.
std::string split_of(const Json& row) {
  std::string split = text_of(row, kSplit);
  return split.starts_with("valid") ? "validation" : split;
}

// "validation-loss" and the like are accepted for "validation".
std::string plain_name(std::string_view metric) {
  std::string name(metric);
  std::ranges::replace(name, '-', '_');
  std::ranges::replace(name, ' ', '_');
  if (name.starts_with("valid_") || name == "valid") name = "validation" + name.substr(5);
  bool evaluated = name.starts_with("validation_") || name.starts_with("test_");
  if (evaluated && name.ends_with("_loss")) name.resize(name.size() - 5);
  return name;
}

}  // namespace

struct MetricsFile::Rows {
  std::vector<Json> steps, evaluations;  // by iteration

  void add(Json row) {
    std::int64_t iteration = iteration_of(row);
    if (!row.contains(kSplit)) {
      row.erase("routers");  // large, and no metric of its own
      bool again = !steps.empty() && iteration_of(steps.back()) >= iteration;
      if (again) {
        steps.erase(tail(steps, iteration), steps.end());
        evaluations.erase(tail(evaluations, iteration), evaluations.end());
      }
      steps.push_back(std::move(row));
      return;
    }
    auto same = [&](const Json& other) {
      return split_of(other) == split_of(row) && text_of(other, "name") == text_of(row, "name");
    };
    evaluations.erase(std::remove_if(tail(evaluations, iteration), evaluations.end(), same),
                      evaluations.end());
    evaluations.push_back(std::move(row));
  }

  // The rows at the end that are of the iteration or later.
  static std::vector<Json>::iterator tail(std::vector<Json>& rows, std::int64_t iteration) {
    auto begin = rows.end();
    while (begin != rows.begin() && iteration_of(*std::prev(begin)) >= iteration) --begin;
    return begin;
  }

  // Place of every step on the axis; NaN if unknown.
  std::vector<double> places(PlotAxis axis) const {
    std::vector<double> out;
    double seconds = 0;
    for (const Json& step : steps) {
      seconds += number_at(step, "elapsed_ms") / 1000;
      out.push_back(axis == PlotAxis::kTime     ? seconds
                    : axis == PlotAxis::kTokens ? number_at(step, "consumed_tokens")
                                                : static_cast<double>(iteration_of(step)));
    }
    return out;
  }
  // That of the last step up to the iteration.
  double place_of(std::int64_t iteration, PlotAxis axis, const std::vector<double>& places) const {
    if (axis == PlotAxis::kIteration) return static_cast<double>(iteration);
    auto after = std::ranges::upper_bound(steps, iteration, {}, iteration_of);
    if (after == steps.begin()) return std::numeric_limits<double>::quiet_NaN();
    return places[static_cast<std::size_t>(after - steps.begin()) - 1];
  }
};

MetricsFile::MetricsFile(const std::string& path) : path_(path), rows_(std::make_unique<Rows>()) {
  const std::string all = read_file(path);
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < all.size(); ++number) {
    std::size_t end = std::min(all.find('\n', begin), all.size());
    std::string_view line = trim(std::string_view(all).substr(begin, end - begin));
    begin = end + 1;
    if (line.empty()) continue;
    Json row = Json::parse(line, nullptr, false);
    if (row.is_discarded()) row = Json::parse(mark_python_numbers(line), nullptr, false);
    bool last = trim(std::string_view(all).substr(std::min(begin, all.size()))).empty();
    if (row.is_discarded() && last) break;
    BEV_CHECK(is_row(row), ErrorKind::kInput, path, ":", number + 1, ": ", quote(line, 40),
              " is no row of metrics; give a file of --metrics-out, or the folder of a run");
    rows_->add(std::move(row));
  }
}

MetricsFile::~MetricsFile() = default;
MetricsFile::MetricsFile(MetricsFile&& other) noexcept = default;

std::vector<std::string> MetricsFile::metrics() const {
  std::vector<std::string> names;
  std::set<std::string> seen;
  auto add = [&](const std::string& name) {
    if (seen.insert(name).second) names.push_back(name);
  };
  for (const Json& step : rows_->steps) {
    for (const auto& [key, value] : step.items()) {
      if (key != kIteration && is_value(value)) add(key);
    }
  }
  for (const Json& row : rows_->evaluations) {
    add(split_of(row));
    if (row.contains("perplexity")) add(split_of(row) + kPerplexity);
  }
  return names;
}

std::vector<PlotSeries> MetricsFile::series(std::string_view metric, PlotAxis axis) const {
  const std::vector<std::string> names = metrics();
  auto there = [&](const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  std::string name = there(std::string(metric)) ? std::string(metric) : plain_name(metric);
  BEV_CHECK(there(name), ErrorKind::kInput, path_, ": has no metric ", quote(metric),
            names.empty() ? "; it has no rows yet" : concat("; there are ", join(names, ", ")));
  const std::vector<double> places = rows_->places(axis);
  bool placed = axis == PlotAxis::kIteration ||
                std::ranges::any_of(places, [](double place) { return place == place; });
  BEV_CHECK(placed, ErrorKind::kInput, path_, ": its rows have no ",
            axis == PlotAxis::kTokens ? "consumed_tokens" : "elapsed_ms", "; use --x iteration");
  std::vector<PlotSeries> out;
  auto series_named = [&](const std::string& title) -> std::vector<PlotPoint>& {
    auto found = std::ranges::find(out, title, &PlotSeries::name);
    if (found == out.end()) found = out.insert(out.end(), {title, {}});
    return found->points;
  };
  for (std::size_t i = 0; i < rows_->steps.size(); ++i) {
    auto value = rows_->steps[i].find(name);
    if (value == rows_->steps[i].end() || !is_value(*value)) continue;
    series_named("").push_back({places[i], number_of(*value)});
  }
  for (const Json& row : rows_->evaluations) {
    bool perplexity = name == split_of(row) + kPerplexity;
    if (!perplexity && name != split_of(row)) continue;
    double place = rows_->place_of(iteration_of(row), axis, places);
    series_named(text_of(row, "name"))
        .push_back({place, number_at(row, perplexity ? "perplexity" : "loss")});
  }
  return out;
}

}  // namespace bev
