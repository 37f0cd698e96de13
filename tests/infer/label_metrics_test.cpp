#include "infer/label_metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/expect_error.h"

namespace bev {
namespace {

using Texts = std::vector<std::string>;

TEST(LabelMetrics, OfThreeLabels) {
  // Computed by hand; scikit-learn 1.5 gives the same.
  const LabelResults results{{0, 2, 1, 0, 0, 1}, {0, 1, 2, 0, 1, 2}, 3};
  EXPECT_EQ(confusion_table(results),
            (std::vector<std::vector<std::int64_t>>{{2, 0, 0}, {1, 0, 1}, {0, 2, 0}}));
  EXPECT_NEAR(label_metric("accuracy", results), 1.0 / 3, 1e-12);
  EXPECT_NEAR(label_metric("f1_macro", results), 0.8 / 3, 1e-12);
  EXPECT_NEAR(label_metric("f1", results), 0.8 / 3, 1e-12);
  EXPECT_NEAR(label_metric("f1_weighted", results), 0.8 / 3, 1e-12);
  EXPECT_NEAR(label_metric("precision", results), 2.0 / 9, 1e-12);
  // (2 * 6 - (3*2 + 2*2 + 1*2)) = 0
  EXPECT_NEAR(label_metric("matthews", results), 0.0, 1e-12);
}

TEST(LabelMetrics, OfTwoLabelsAreThoseOfTheSecond) {
  const LabelResults results{{1, 1, 0, 0, 1}, {1, 0, 0, 1, 1}, 2};
  EXPECT_NEAR(label_metric("precision", results), 2.0 / 3, 1e-12);
  EXPECT_NEAR(label_metric("recall", results), 2.0 / 3, 1e-12);
  EXPECT_NEAR(label_metric("f1", results), 2.0 / 3, 1e-12);
  // (tp tn - fp fn) / sqrt(..) = (2*1 - 1*1) / sqrt(3*3*2*2)
  EXPECT_NEAR(label_metric("matthews", results), 1.0 / 6, 1e-12);
  EXPECT_EQ(label_metric("matthews", {{1, 1}, {0, 1}, 2}), 0.0);
}

TEST(LabelMetrics, Correlations) {
  const std::vector<double> a = {1, 2, 3, 4}, b = {1, 4, 9, 16}, ties = {1, 1, 2, 3};
  EXPECT_NEAR(number_metric("spearman", a, b), 1.0, 1e-12);
  EXPECT_NEAR(number_metric("pearson", a, b), 25 / std::sqrt(5.0 * 129), 1e-12);
  // Ranks 1.5 1.5 3 4.
  EXPECT_NEAR(number_metric("spearman", a, ties), 4.5 / std::sqrt(5 * 4.5), 1e-12);
  EXPECT_NEAR(number_metric("mse", a, b), (0.0 + 4 + 36 + 144) / 4, 1e-12);
  EXPECT_NEAR(number_metric("mae", a, b), (0.0 + 2 + 6 + 12) / 4, 1e-12);
  EXPECT_TRUE(std::isnan(number_metric("pearson", a, std::vector<double>{1, 1, 1, 1})));
}

TEST(LabelMetrics, OfAnswersAreSquads) {
  const Texts ours = {"The  cat!", "a red car", ""};
  const std::vector<Texts> right = {{"cat"}, {"blue car", "red bus"}, {""}};
  EXPECT_NEAR(answer_metric("exact_match", ours, right), 2.0 / 3, 1e-12);
  EXPECT_NEAR(answer_metric("f1", ours, right), 2.5 / 3, 1e-12);
}

TEST(LabelMetrics, OfTagsAreOfSpans) {
  const std::vector<Texts> right = {{"B-P", "I-P", "O", "B-L"}},
                           ours = {{"B-P", "I-P", "O", "B-P"}};
  EXPECT_NEAR(tag_metric("accuracy", ours, right), 0.75, 1e-12);
  EXPECT_NEAR(tag_metric("f1", ours, right), 0.5, 1e-12);
  // A type that changes begins a span, as does an I behind an O.
  const std::vector<Texts> loose = {{"I-P", "I-P", "O", "I-L"}};
  EXPECT_NEAR(tag_metric("recall", loose, right), 1.0, 1e-12);
}

TEST(LabelMetrics, UnknownNamesAreRefused) {
  expect_error(ErrorKind::kConfig, {"--metrics: auc", "accuracy, f1"}, [] {
    label_metric("auc", {{0}, {0}, 1});
  });
  expect_error(ErrorKind::kConfig, {"--metrics: accuracy", "pearson"},
               [] { number_metric("accuracy", std::vector<double>{1}, std::vector<double>{1}); });
}

}  // namespace
}  // namespace bev
