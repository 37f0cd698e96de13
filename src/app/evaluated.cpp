#include "app/evaluated.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "data/labelled/table_file.h"
#include "infer/label_metrics.h"

namespace bev {

namespace {

using Json = nlohmann::ordered_json;
using Texts = std::vector<std::string>;

Texts names_or_all(const Texts& given, std::span<const std::string_view> known) {
  return given.empty() ? Texts(known.begin(), known.end()) : given;
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json result_of(std::size_t examples, Json metrics) {
  return {{"examples", examples}, {"metrics", std::move(metrics)}};
}

std::string evaluate_labels(const LabelResults& results, const Texts& labels, const Texts& wanted) {
  Json metrics;
  for (const std::string& name : names_or_all(wanted, label_metric_names())) {
    metrics[name] = number(label_metric(name, results));
  }
  Json out = result_of(results.wanted.size(), std::move(metrics));
  out["labels"] = labels;
  out["confusion"] = confusion_table(results);
  return out.dump();
}

std::string evaluate_numbers(const std::vector<double>& ours, const std::vector<double>& right,
                             const Texts& wanted) {
  Json metrics;
  for (const std::string& name : names_or_all(wanted, number_metric_names())) {
    metrics[name] = number(number_metric(name, ours, right));
  }
  return result_of(right.size(), std::move(metrics)).dump();
}

std::string evaluate_tags(const std::vector<Texts>& ours, const std::vector<Texts>& right,
                          const Texts& wanted) {
  Json metrics;
  for (const std::string& name : names_or_all(wanted, tag_metric_names())) {
    metrics[name] = number(tag_metric(name, ours, right));
  }
  return result_of(right.size(), std::move(metrics)).dump();
}

std::string evaluate_answers(const Texts& ours, const std::vector<Texts>& right,
                             const Texts& wanted) {
  Json metrics;
  for (const std::string& name : names_or_all(wanted, answer_metric_names())) {
    metrics[name] = number(answer_metric(name, ours, right));
  }
  return result_of(right.size(), std::move(metrics)).dump();
}

// A question without an answer has the empty one.
Texts or_none(const Texts& answers) { return answers.empty() ? Texts{""} : answers; }

// The lines of a file as pairs of a place and its identity; "": it has none.
struct Line {
  JsonPlace place;
  std::string id;
};
std::vector<Line> read_lines(const std::string& path) {
  std::vector<Line> lines;
  for (const JsonPlace& row : read_table(path)) {
    lines.push_back({row, row.has("id") ? row.member("id").scalar_text() : ""});
  }
  return lines;
}

// References in the order of the predictions.
std::vector<Line> matched(const std::vector<Line>& ours, std::vector<Line> right,
                          const std::string& path) {
  BEV_CHECK(ours.size() == right.size(), ErrorKind::kInput, path, ": ", right.size(),
            " references for ", ours.size(), " predictions");
  auto named = [](const Line& line) { return !line.id.empty(); };
  if (!std::ranges::all_of(ours, named) || !std::ranges::all_of(right, named)) return right;
  std::map<std::string, const Line*> by_id;
  for (const Line& line : right) {
    BEV_CHECK(by_id.emplace(line.id, &line).second, ErrorKind::kInput, line.place.where(), ": id ",
              line.id, " is there twice");
  }
  std::vector<Line> out;
  for (const Line& line : ours) {
    auto found = by_id.find(line.id);
    BEV_CHECK(found != by_id.end(), ErrorKind::kInput, line.place.where(), ": id ", line.id,
              " is none of ", path);
    out.push_back(*found->second);
  }
  return out;
}

// The first of these members that a line has.
std::string member_of(const Line& line, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (line.place.has(name)) return name;
  }
  BEV_FAIL(ErrorKind::kInput, line.place.where(), ": has none of ",
           join(Texts(names.begin(), names.end()), ", "));
}

double number_in(const Line& line) {
  const std::string name = member_of(line, {"value", "label"});
  return line.place.member(name).number();
}

Texts texts_in(const JsonPlace& place) {
  Texts out;
  if (!place.is_list()) return {place.scalar_text()};
  for (const JsonPlace& each : place.entries("texts")) {
    out.push_back(each.is_object() ? each.member("text").scalar_text() : each.scalar_text());
  }
  return out;
}

Texts answers_in(const Line& line) {
  JsonPlace place = line.place.member(member_of(line, {"answers", "answer", "text"}));
  return texts_in(place.is_object() ? place.member("text") : place);
}

std::string evaluate_label_lines(const std::vector<Line>& ours, const std::vector<Line>& right,
                                 const Texts& metrics) {
  std::vector<TextExample> all(2 * ours.size());
  auto text = [](const Line& line) {
    return line.place.member(member_of(line, {"label", "label_id"})).scalar_text();
  };
  for (std::size_t i = 0; i < ours.size(); ++i) {
    all[2 * i].labels = {text(ours[i])};
    all[2 * i + 1].labels = {text(right[i])};
  }
  const Texts names = label_names(all);
  auto number_of = [&](const TextExample& example) {
    return static_cast<std::int32_t>(std::ranges::find(names, example.labels.front()) -
                                     names.begin());
  };
  LabelResults results;
  results.labels = std::ssize(names);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    results.predicted.push_back(number_of(all[2 * i]));
    results.wanted.push_back(number_of(all[2 * i + 1]));
  }
  return evaluate_labels(results, names, metrics);
}

std::string evaluate_tag_lines(const std::vector<Line>& ours, const std::vector<Line>& right,
                               const Texts& metrics) {
  std::vector<Texts> predicted, wanted;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    predicted.push_back(texts_in(ours[i].place.member("labels")));
    wanted.push_back(texts_in(right[i].place.member(member_of(right[i], {"labels", "tags"}))));
    BEV_CHECK(predicted[i].size() == wanted[i].size(), ErrorKind::kInput, ours[i].place.where(),
              ": ", predicted[i].size(), " labels for ", wanted[i].size(), " words");
  }
  return evaluate_tags(predicted, wanted, metrics);
}

}  // namespace

std::string evaluate_predictions(const ExampleFormat& format,
                                 const std::vector<TextExample>& examples,
                                 const std::vector<Prediction>& predictions, const Texts& metrics) {
  auto number_of = [&](const TextExample& example, const std::string& label) {
    auto at = std::ranges::find(format.labels, label);
    if (at == format.labels.end()) {
      // A number stands for the label of that number.
      const bool digits =
          !label.empty() && label.size() < 8 && label.find_first_not_of("0123456789") == label.npos;
      const auto number =
          digits ? static_cast<std::size_t>(std::stoul(label)) : format.labels.size();
      BEV_CHECK(number < format.labels.size(), ErrorKind::kInput, example.where, ": the label '",
                label, "' is none of ", join(format.labels, ", "));
      return static_cast<std::int32_t>(number);
    }
    return static_cast<std::int32_t>(at - format.labels.begin());
  };
  LabelResults labels;
  labels.labels = std::ssize(format.labels);
  std::vector<double> numbers, right_numbers;
  std::vector<Texts> tags, right_tags, right_answers;
  Texts answers;
  for (std::size_t i = 0; i < examples.size(); ++i) {
    const TextExample& example = examples[i];
    const Prediction& prediction = predictions[i];
    switch (format.task) {
      case TextTask::kClasses:
        labels.predicted.push_back(prediction.label);
        labels.wanted.push_back(number_of(example, example.labels.front()));
        break;
      case TextTask::kNumber:
        numbers.push_back(prediction.value);
        right_numbers.push_back(*example.number);
        break;
      case TextTask::kTags: {
        Texts &ours = tags.emplace_back(), &right = right_tags.emplace_back();
        for (std::size_t w = 0; w < example.labels.size(); ++w) {
          const std::int32_t tag = prediction.tags[w];
          ours.push_back(tag < 0 ? "O" : format.labels[static_cast<std::size_t>(tag)]);
          right.push_back(
              format.labels[static_cast<std::size_t>(number_of(example, example.labels[w]))]);
        }
        break;
      }
      case TextTask::kSpans:
        answers.push_back(prediction.answer);
        right_answers.push_back(or_none(example.labels));
    }
  }
  switch (format.task) {
    case TextTask::kClasses:
      return evaluate_labels(labels, format.labels, metrics);
    case TextTask::kNumber:
      return evaluate_numbers(numbers, right_numbers, metrics);
    case TextTask::kTags:
      return evaluate_tags(tags, right_tags, metrics);
    case TextTask::kSpans:
      break;
  }
  return evaluate_answers(answers, right_answers, metrics);
}

std::string evaluate_files(const std::string& predictions, const std::string& references,
                           const Texts& metrics) {
  const std::vector<Line> ours = read_lines(predictions);
  const std::vector<Line> right = matched(ours, read_lines(references), references);
  const std::string kind =
      member_of(ours.front(), {"labels", "value", "answer", "text", "label", "label_id"});
  if (kind == "labels") return evaluate_tag_lines(ours, right, metrics);
  if (kind == "label" || kind == "label_id") return evaluate_label_lines(ours, right, metrics);
  if (kind == "value") {
    std::vector<double> a, b;
    for (const Line& line : ours) a.push_back(number_in(line));
    for (const Line& line : right) b.push_back(number_in(line));
    return evaluate_numbers(a, b, metrics);
  }
  Texts answers;
  std::vector<Texts> wanted;
  for (const Line& line : ours) {
    answers.push_back(line.place.member(member_of(line, {"answer", "text"})).scalar_text());
  }
  for (const Line& line : right) wanted.push_back(answers_in(line));
  return evaluate_answers(answers, wanted, metrics);
}

}  // namespace bev
