// Metrics of predicted labels, numbers, tags and answers against those that are right.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

// Labels of examples, numbers below `labels`.
struct LabelResults {
  std::vector<std::int32_t> predicted, wanted;
  std::int64_t labels = 0;
};

// Examples of each right label (rows) by predicted label (columns).
std::vector<std::vector<std::int64_t>> confusion_table(const LabelResults& results);

// accuracy, f1 (of the second of two labels, else f1_macro), f1_macro, f1_micro, f1_weighted,
// precision, recall (as f1), matthews. Throws Error(kConfig) naming what is known.
double label_metric(std::string_view name, const LabelResults& results);
std::span<const std::string_view> label_metric_names();

// pearson, spearman, mse, mae of equally many numbers; NaN where a correlation is not defined.
double number_metric(std::string_view name, std::span<const double> predicted,
                     std::span<const double> wanted);
std::span<const std::string_view> number_metric_names();

// exact_match and f1 of answers, as SQuAD normalises and compares them; the best of the right
// answers of an example counts.
double answer_metric(std::string_view name, std::span<const std::string> predicted,
                     std::span<const std::vector<std::string>> wanted);
std::span<const std::string_view> answer_metric_names();

// accuracy of tags, and precision, recall and f1 of the spans that tags in the notation B-X, I-X, O
// stand for (as seqeval: a type that changes begins a span). Rows have equally many tags.
double tag_metric(std::string_view name, std::span<const std::vector<std::string>> predicted,
                  std::span<const std::vector<std::string>> wanted);
std::span<const std::string_view> tag_metric_names();

}  // namespace bev
