#include "infer/label_metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/text.h"

namespace bev {

namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

constexpr std::array<std::string_view, 8> kLabelNames = {
    "accuracy", "f1", "f1_macro", "f1_micro", "f1_weighted", "precision", "recall", "matthews"};
constexpr std::array<std::string_view, 4> kNumberNames = {"pearson", "spearman", "mse", "mae"};
constexpr std::array<std::string_view, 2> kAnswerNames = {"exact_match", "f1"};
constexpr std::array<std::string_view, 4> kTagNames = {"accuracy", "f1", "precision", "recall"};

[[noreturn]] void refuse(std::string_view name, std::string_view what,
                         std::span<const std::string_view> known) {
  BEV_FAIL(ErrorKind::kConfig, "--metrics: ", name, " is none of ", what, "; known are ",
           join(std::vector<std::string>(known.begin(), known.end()), ", "));
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }
double harmonic(double a, double b) { return ratio(2 * a * b, a + b); }

// What happened to one label.
struct LabelCounts {
  double right = 0, predicted = 0, wanted = 0;
  double precision() const { return ratio(right, predicted); }
  double recall() const { return ratio(right, wanted); }
  double f1() const { return ratio(2 * right, predicted + wanted); }
};

std::vector<LabelCounts> count_labels(const LabelResults& results) {
  std::vector<LabelCounts> counts(static_cast<std::size_t>(results.labels));
  for (std::size_t i = 0; i < results.wanted.size(); ++i) {
    auto p = static_cast<std::size_t>(results.predicted[i]);
    auto w = static_cast<std::size_t>(results.wanted[i]);
    counts[p].predicted += 1;
    counts[w].wanted += 1;
    if (p == w) counts[w].right += 1;
  }
  return counts;
}

double share_right(const LabelResults& results) {
  double right = 0;
  for (std::size_t i = 0; i < results.wanted.size(); ++i) {
    right += results.predicted[i] == results.wanted[i] ? 1 : 0;
  }
  return ratio(right, static_cast<double>(results.wanted.size()));
}

// A score of the second of two labels, else its mean over the labels that occur.
double of_labels(const std::vector<LabelCounts>& counts, double (LabelCounts::*score)() const,
                 bool macro) {
  if (counts.size() == 2 && !macro) return (counts[1].*score)();
  double sum = 0, there = 0;
  for (const LabelCounts& label : counts) {
    if (label.predicted + label.wanted == 0) continue;
    sum += (label.*score)();
    there += 1;
  }
  return ratio(sum, there);
}

double weighted_f1(const std::vector<LabelCounts>& counts) {
  double sum = 0, all = 0;
  for (const LabelCounts& label : counts) {
    sum += label.wanted * label.f1();
    all += label.wanted;
  }
  return ratio(sum, all);
}

// Correlation of the one-hot labels (R_K); 0 where one side is constant.
double matthews(const LabelResults& results, const std::vector<LabelCounts>& counts) {
  const auto n = static_cast<double>(results.wanted.size());
  double right = 0, both = 0, predicted = 0, wanted = 0;
  for (const LabelCounts& label : counts) {
    right += label.right;
    both += label.predicted * label.wanted;
    predicted += label.predicted * label.predicted;
    wanted += label.wanted * label.wanted;
  }
  const double spread = std::sqrt((n * n - predicted) * (n * n - wanted));
  return ratio(right * n - both, spread);
}

double mean(std::span<const double> x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

double pearson(std::span<const double> a, std::span<const double> b) {
  if (a.size() < 2) return kUndefined;
  const double mean_a = mean(a), mean_b = mean(b);
  double both = 0, square_a = 0, square_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    both += (a[i] - mean_a) * (b[i] - mean_b);
    square_a += (a[i] - mean_a) * (a[i] - mean_a);
    square_b += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return square_a > 0 && square_b > 0 ? both / std::sqrt(square_a * square_b) : kUndefined;
}

// Ranks from 1; equal numbers share the mean of theirs.
std::vector<double> ranks(std::span<const double> x) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return x[i]; });
  std::vector<double> out(x.size());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin;
    while (end < order.size() && x[order[end]] == x[order[begin]]) ++end;
    for (std::size_t i = begin; i < end; ++i) {
      out[order[i]] = 0.5 * static_cast<double>(begin + end + 1);
    }
    begin = end;
  }
  return out;
}

// Lower case, without punctuation and articles, as words.
std::vector<std::string> answer_words(std::string_view text) {
  std::string plain;
  for (char c : text) {
    const bool upper = c >= 'A' && c <= 'Z';
    constexpr std::string_view kMarks = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
    if (kMarks.find(c) != kMarks.npos) continue;
    plain.push_back(upper ? static_cast<char>(c - 'A' + 'a') : c);
  }
  std::vector<std::string> words;
  std::string word;
  auto end_word = [&] {
    const bool article = word == "a" || word == "an" || word == "the";
    if (!word.empty() && !article) words.push_back(word);
    word.clear();
  };
  for (char c : plain) {
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      end_word();
    } else {
      word.push_back(c);
    }
  }
  end_word();
  return words;
}

// F1 of the words that two answers share.
double shared_words(std::vector<std::string> a, std::vector<std::string> b) {
  if (a.empty() || b.empty()) return a.empty() == b.empty() ? 1 : 0;
  const auto size_a = static_cast<double>(a.size()), size_b = static_cast<double>(b.size());
  std::ranges::sort(a);
  std::ranges::sort(b);
  std::vector<std::string> both;
  std::ranges::set_intersection(a, b, std::back_inserter(both));
  const auto same = static_cast<double>(both.size());
  return harmonic(same / size_a, same / size_b);
}

// Type, first and last position of every span of a row.
using Span = std::tuple<std::size_t, std::string, std::size_t, std::size_t>;

void add_spans(std::size_t row, const std::vector<std::string>& tags, std::set<Span>& spans) {
  auto type_of = [](const std::string& tag) {
    return tag.size() > 2 && tag[1] == '-' ? tag.substr(2) : std::string();
  };
  for (std::size_t begin = 0; begin < tags.size();) {
    const std::string type = type_of(tags[begin]);
    std::size_t end = begin + 1;
    while (end < tags.size() && tags[end][0] == 'I' && type_of(tags[end]) == type) ++end;
    if (!type.empty()) spans.insert({row, type, begin, end});
    begin = end;
  }
}

std::set<Span> spans_of(std::span<const std::vector<std::string>> rows) {
  std::set<Span> spans;
  for (std::size_t row = 0; row < rows.size(); ++row) add_spans(row, rows[row], spans);
  return spans;
}

double tag_accuracy(std::span<const std::vector<std::string>> predicted,
                    std::span<const std::vector<std::string>> wanted) {
  double right = 0, all = 0;
  for (std::size_t row = 0; row < wanted.size(); ++row) {
    for (std::size_t i = 0; i < wanted[row].size(); ++i) {
      right += predicted[row][i] == wanted[row][i] ? 1 : 0;
      all += 1;
    }
  }
  return ratio(right, all);
}

}  // namespace

std::span<const std::string_view> label_metric_names() { return kLabelNames; }
std::span<const std::string_view> number_metric_names() { return kNumberNames; }
std::span<const std::string_view> answer_metric_names() { return kAnswerNames; }
std::span<const std::string_view> tag_metric_names() { return kTagNames; }

std::vector<std::vector<std::int64_t>> confusion_table(const LabelResults& results) {
  const auto labels = static_cast<std::size_t>(results.labels);
  std::vector<std::vector<std::int64_t>> table(labels, std::vector<std::int64_t>(labels));
  for (std::size_t i = 0; i < results.wanted.size(); ++i) {
    auto wanted = static_cast<std::size_t>(results.wanted[i]);
    ++table[wanted][static_cast<std::size_t>(results.predicted[i])];
  }
  return table;
}

double label_metric(std::string_view name, const LabelResults& results) {
  const std::vector<LabelCounts> counts = count_labels(results);
  if (name == "accuracy" || name == "f1_micro") return share_right(results);
  if (name == "f1") return of_labels(counts, &LabelCounts::f1, false);
  if (name == "f1_macro") return of_labels(counts, &LabelCounts::f1, true);
  if (name == "f1_weighted") return weighted_f1(counts);
  if (name == "precision") return of_labels(counts, &LabelCounts::precision, false);
  if (name == "recall") return of_labels(counts, &LabelCounts::recall, false);
  if (name == "matthews") return matthews(results, counts);
  refuse(name, "the metrics of labels", kLabelNames);
}

double number_metric(std::string_view name, std::span<const double> predicted,
                     std::span<const double> wanted) {
  if (name == "pearson") return pearson(predicted, wanted);
  if (name == "spearman") return pearson(ranks(predicted), ranks(wanted));
  double sum = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double error = std::abs(predicted[i] - wanted[i]);
    sum += name == "mse" ? error * error : error;
  }
  if (name == "mse" || name == "mae") return sum / static_cast<double>(wanted.size());
  refuse(name, "the metrics of numbers", kNumberNames);
}

double answer_metric(std::string_view name, std::span<const std::string> predicted,
                     std::span<const std::vector<std::string>> wanted) {
  const bool exact = name == "exact_match";
  if (!exact && name != "f1") refuse(name, "the metrics of answers", kAnswerNames);
  double sum = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::vector<std::string> words = answer_words(predicted[i]);
    double best = 0;
    for (const std::string& right : wanted[i]) {
      const std::vector<std::string> theirs = answer_words(right);
      best = std::max(best, exact ? (words == theirs ? 1.0 : 0.0) : shared_words(words, theirs));
    }
    sum += best;
  }
  return ratio(sum, static_cast<double>(wanted.size()));
}

double tag_metric(std::string_view name, std::span<const std::vector<std::string>> predicted,
                  std::span<const std::vector<std::string>> wanted) {
  if (name == "accuracy") return tag_accuracy(predicted, wanted);
  const std::set<Span> ours = spans_of(predicted), right = spans_of(wanted);
  std::vector<Span> both;
  std::ranges::set_intersection(ours, right, std::back_inserter(both));
  const auto same = static_cast<double>(both.size());
  const double precision = ratio(same, static_cast<double>(ours.size()));
  const double recall = ratio(same, static_cast<double>(right.size()));
  if (name == "precision") return precision;
  if (name == "recall") return recall;
  if (name == "f1") return harmonic(precision, recall);
  refuse(name, "the metrics of tags", kTagNames);
}

}  // namespace bev
