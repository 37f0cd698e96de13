#include "train/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "train/report_file.h"
#include "train/tensorboard.h"

namespace bev {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

StepReport step(std::int64_t iteration, double loss) {
  StepReport report;
  report.iteration = iteration;
  report.consumed_samples = iteration * 32;
  report.global_batch_size = 32;
  report.tokens = 32 * 1024;
  report.elapsed_seconds = 0.5;
  report.flops = 2e12;
  report.loss = loss;
  report.learning_rate = 1.5e-4;
  report.weight_decay = 0.1;
  report.metrics = {{"lm loss", loss, MetricStyle::kLoss, "loss"},
                    {"grad norm", 1.23456, MetricStyle::kNumber}};
  return report;
}

TEST(IterationLog, FollowsMegatronsLineFieldByField) {
  IterationLog log({.train_iterations = 1000, .log_interval = 2});
  log.add(step(2, 10.25));
  EXPECT_EQ(log.line("2025-01-02 03:04:05.678901"),
            " [2025-01-02 03:04:05.678901] iteration        2/    1000 |"
            " consumed samples:           64 |"
            " elapsed time per iteration (ms): 500.0 |"
            " learning rate: 1.500000E-04 | global batch size:    32 |"
            " lm loss: 1.025000E+01 | loss scale: 1.0 | grad norm: 1.235 |"
            " number of skipped iterations:   0 | number of nan iterations:   0 |"
            " tokens/s: 65536 |");
}

TEST(IterationLog, WritesOptionalFieldsInTheirPlaces) {
  IterationLog log({.train_iterations = 10,
                    .world_size = 2,
                    .log_throughput = true,
                    .peak_flops_per_second = 8e12});
  StepReport report = step(1, 3.0);
  report.skipped_samples = 5;
  report.metrics.push_back({"num zeros", 17, MetricStyle::kCount});
  report.metrics.push_back({"params norm", 99.5, MetricStyle::kNumber});
  report.metrics.push_back({"load_balancing_loss", 1.0, MetricStyle::kLoss});
  report.metrics.push_back({"mtp_1 loss", 4.0, MetricStyle::kLoss});
  report.loss_scale = 65536;
  report.decoupled_learning_rate = 2e-3;
  log.add(report);
  EXPECT_EQ(
      log.line("T"),
      " [T] iteration        1/      10 | consumed samples:           32 |"
      " skipped samples:            5 | elapsed time per iteration (ms): 500.0 |"
      " throughput per GPU (TFLOP/s/GPU): 2.0 |"
      " learning rate: 1.500000E-04 | decoupled learning rate: 2.000000E-03 |"
      " global batch size:    32 |"
      " lm loss: 3.000000E+00 | load_balancing_loss: 1.000000E+00 | mtp_1 loss: 4.000000E+00 |"
      " loss scale: 65536.0 | grad norm: 1.235 | num zeros: 17 | params norm: 99.500 |"
      " number of skipped iterations:   0 | number of nan iterations:   0 |"
      " tokens/s: 65536 | of peak: 25.0% |");
}

// The peak was measured while the machine did other work.
TEST(IterationLog, NoRunIsFasterThanThePeak) {
  IterationLog log({.train_iterations = 10, .peak_flops_per_second = 1e6});
  StepReport fast = step(1, 3.0), slow = step(2, 3.0);
  slow.elapsed_seconds = 2 * fast.elapsed_seconds;
  log.add(fast);
  EXPECT_THAT(log.line("T"), testing::HasSubstr(" of peak: 100.0% |"));
  log.add(slow);
  EXPECT_THAT(log.line("T"), testing::HasSubstr(" of peak: 50.0% |"));
}

// The first iteration warms up and says nothing about the others.
TEST(TimeLeft, IsSaidOnceAfterTheThirdIteration) {
  TimeLeft left(103);
  StepReport report = step(1, 3.0);
  report.elapsed_seconds = 50;
  EXPECT_EQ(left.add(report), "");
  report.iteration = 2;
  report.elapsed_seconds = 1;
  EXPECT_EQ(left.add(report), "");
  report.iteration = 3;
  report.elapsed_seconds = 2;
  EXPECT_EQ(left.add(report), "time left: about 2m 30s for 100 iterations of 1500.0 ms");
  report.iteration = 4;
  EXPECT_EQ(left.add(report), "");
  TimeLeft none(3);
  for (report.iteration = 1; report.iteration <= 3; ++report.iteration) {
    EXPECT_EQ(none.add(report), "");
  }
}

TEST(IterationLog, AveragesOverIterationsThatCounted) {
  IterationLog log({.train_iterations = 10});
  log.add(step(1, 4.0));
  StepReport bad = step(2, kNan);
  bad.skipped = bad.nan = true;
  bad.elapsed_seconds = 2.0;
  log.add(bad);
  StepReport again = step(3, 2.0);
  again.redone = true;
  log.add(again);
  std::string line = log.line("T");
  EXPECT_NE(line.find(" lm loss: 3.000000E+00 |"), std::string::npos);
  EXPECT_NE(line.find(" elapsed time per iteration (ms): 1000.0 |"), std::string::npos);
  EXPECT_NE(line.find(" skipped iterations:   1 | number of nan iterations:   1 |"
                      " number of redone iterations:   1 |"),
            std::string::npos);
  EXPECT_NE(line.find(" tokens/s: 32768 |"), std::string::npos);

  log.add(step(4, 1.0));  // the next interval starts
  line = log.line("T");
  EXPECT_NE(line.find(" lm loss: 1.000000E+00 |"), std::string::npos);
  EXPECT_NE(line.find(" skipped iterations:   0 | number of nan iterations:   0 |"),
            std::string::npos);
}

TEST(IterationLog, LeavesOutAveragesThatSayNothing) {
  IterationLog log({.train_iterations = 10});
  StepReport skipped = step(1, 7.0);
  skipped.skipped = true;
  log.add(skipped);
  EXPECT_EQ(log.line("T").find("lm loss"), std::string::npos);
  log.add(step(2, std::nan("")));
  EXPECT_EQ(log.line("T").find("lm loss"), std::string::npos);
  // Rewards and losses of policies may be negative.
  log.add(step(2, -0.5));
  EXPECT_NE(log.line("T").find("lm loss: -5.000000E-01"), std::string::npos);
  log.add(step(3, 0.0));
  EXPECT_NE(log.line("T").find("lm loss: 0.000000E+00"), std::string::npos);
}

TEST(IterationLog, IsDueFirstAndOnTheInterval) {
  IterationLog log({.train_iterations = 100, .log_interval = 10});
  std::vector<std::int64_t> lines;
  EXPECT_FALSE(log.due());
  for (std::int64_t i = 5; i <= 30; ++i) {
    log.add(step(i, 1.0));
    if (!log.due()) continue;
    lines.push_back(i);
    log.line("T");
  }
  EXPECT_EQ(lines, (std::vector<std::int64_t>{5, 10, 20, 30}));
}

TEST(ValidationLines, AreRuledWithDashes) {
  std::string text =
      " validation loss at iteration 100 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 "
      "| ";
  std::string rule(text.size() + 1, '-');
  EXPECT_EQ(validation_lines("iteration 100", 2.0), rule + "\n" + text + "\n" + rule);
  EXPECT_EQ(perplexity(25.0), std::exp(20.0));
}

TEST(Metrics, AreOneJsonObjectPerLine) {
  StepReport bad = step(2, kNan);
  bad.metrics[1].value = kNan;
  bad.learning_rate = std::numeric_limits<double>::infinity();
  bad.skipped = bad.nan = true;
  bad.metrics.push_back({"num zeros", 17, MetricStyle::kCount});
  bad.metrics.push_back({"params norm", 99.5, MetricStyle::kNumber});
  bad.metrics.push_back({"mtp_1 loss", 0.25, MetricStyle::kLoss});
  EXPECT_EQ(metrics_json(step(1, 0.1)),
            "{\"iteration\":1,\"consumed_samples\":32,\"consumed_tokens\":0,\"loss\":0.1,\"grad_"
            "norm\":1.23456,"
            "\"lr\":0.00015,\"wd\":0.1,\"loss_scale\":1,\"tokens_per_second\":65536,"
            "\"elapsed_ms\":500,\"batch_size\":32,\"skipped\":false,\"nan\":false}");
  auto second = nlohmann::json::parse(metrics_json(bad));
  EXPECT_TRUE(second.at("loss").is_null());
  EXPECT_TRUE(second.at("grad_norm").is_null());
  EXPECT_TRUE(second.at("lr").is_null());
  EXPECT_EQ(second.at("mtp_1 loss"), 0.25);
  EXPECT_EQ(second.at("num_zeros"), 17);
  EXPECT_EQ(second.at("params_norm"), 99.5);
  EXPECT_EQ(second.at("nan"), true);
}

TEST(Routers, LoadsAreOfTheWholeBatchAndReported) {
  ModelConfig model;
  model.num_layers = 2;
  model.hidden_size = 8;
  model.num_attention_heads = 2;
  model.moe.num_experts = 4;
  model.moe.topk = 2;
  model.moe.layer_freq = {0, 1};
  model.mtp_num_layers = 1;  // like the last layer
  // Ten tokens: counts 2, 4, 4, 10, every score a quarter; squares 40, entropies 5, 3 choices
  // dropped. In the MTP layer all of them choose two experts, and nothing is dropped.
  std::vector<double> sums(11, -1);
  for (const std::vector<double>& counts : {std::vector<double>{2, 4, 4, 10}, {0, 10, 10, 0}}) {
    sums.insert(sums.end(), counts.begin(), counts.end());
    sums.insert(sums.end(), 4, 2.5);
    sums.insert(sums.end(), {40, 5, counts[0] > 0 ? 3.0 : 0.0});
  }
  std::vector<RouterLoad> loads = router_loads(model, sums);
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_EQ(loads[1].layer, 2);
  EXPECT_EQ(loads[1].tokens_min, 0);
  EXPECT_EQ(loads[1].dropped, 0);
  EXPECT_EQ(loads[0].layer, 1);
  EXPECT_EQ(loads[0].tokens_min, 2);
  EXPECT_EQ(loads[0].tokens_p50, 4);
  EXPECT_EQ(loads[0].tokens_max, 10);
  EXPECT_DOUBLE_EQ(loads[0].balance_loss, 1);
  EXPECT_DOUBLE_EQ(loads[0].z_loss, 4);
  EXPECT_DOUBLE_EQ(loads[0].entropy, 0.5);
  EXPECT_DOUBLE_EQ(loads[0].dropped, 0.15);
  StepReport step;
  step.routers = loads;
  EXPECT_NE(metrics_json(step).find("\"routers\":[{\"layer\":1,\"tokens_min\":2,"),
            std::string::npos);
  IterationLog log(ReportOptions{});
  log.add(step);
  EXPECT_NE(log.line("now").find("(min, p50, p99, max; layer 1): 2, 4, 10, 10 | dropped choices "
                                 "(layer 1): 15.00% |"),
            std::string::npos);
}

TEST(Metrics, OfEarlierIterationsGiveTheCurveOfTheRun) {
  std::string path = testing::TempDir() + "report_earlier.jsonl";
  std::string rows;
  auto add = [&](const std::string& row) { rows += row + '\n'; };
  add(metrics_json(step(1, 3.0)));
  add("rubbish");
  add(metrics_json(step(2, kNan)));
  add(evaluation_json(2, {"valid", "a\"b", 2.0}));
  add(evaluation_json(2, {"valid", "c", 4.0}));
  add(evaluation_json(2, {"test", "", 9.0}));
  add(metrics_json(step(3, 1.0)));  // after the checkpoint
  write_file(path, rows + "{\"iteration\":1,\"lo");
  std::string earlier = metrics_before(path, 3);
  EXPECT_EQ(std::count(earlier.begin(), earlier.end(), '\n'), 5);
  LossCurves curves = curves_of(earlier);
  ASSERT_EQ(curves.train.size(), 2u);
  EXPECT_EQ(curves.train[0].y, 3.0);
  EXPECT_TRUE(std::isnan(curves.train[1].y));
  ASSERT_EQ(curves.validation.size(), 1u);
  EXPECT_EQ(curves.validation[0].x, 2.0);
  EXPECT_EQ(curves.validation[0].y, 3.0);  // the mean of the sets
  EXPECT_EQ(metrics_before(path + ".none", 3), "");
}

TEST(Metrics, OfAnEvaluation) {
  EXPECT_EQ(evaluation_json(7, {"test", "", kNan}),
            "{\"iteration\":7,\"split\":\"test\",\"name\":\"test\",\"loss\":null,"
            "\"perplexity\":null}");
}

class LateFile final : public ReportFile {
 public:
  explicit LateFile(std::string path) : ReportFile("--metrics-out m"), path_(std::move(path)) {}
  bool room = false;

 private:
  std::unique_ptr<AppendFile> open() override {
    BEV_CHECK(room, ErrorKind::kIo, "no room");
    return std::make_unique<AppendFile>(path_, OpenMode::kTruncate);
  }
  std::string path_;
};

TEST(ReportFile, WritesWhatWaitedWhenTheDiskHasRoomAgain) {
  std::string path = testing::TempDir() + "report_file.txt";
  testing::internal::CaptureStderr();
  LateFile file(path);
  for (int i = 0; i < 12; ++i) file.write(concat(i, "\n"));
  file.room = true;
  file.write("12\n");
  EXPECT_EQ(read_file(path), "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n");
  std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(split(log, '\n').size(), 4u) << log;  // failures 1 and 10, and the recovery
  EXPECT_NE(log.find("(10 times now)"), std::string::npos);
  EXPECT_NE(log.find("can be written again"), std::string::npos);
}

TEST(Scalars, HaveMegatronsTags) {
  TensorBoardWriter writer(testing::TempDir() + "report_scalars");
  write_scalars(writer, step(1, 2.0), {});
  write_validation_scalars(writer, step(1, 2.0), {"valid", "", 2.5});
  write_validation_scalars(writer, step(1, 2.0), {"valid", "code", 2.5});
  writer.flush();
  std::string content = read_file(writer.path());
  for (const char* tag :
       {"learning-rate", "learning-rate vs samples", "batch-size", "lm loss", "lm loss vs samples",
        "loss-scale", "grad-norm", "iteration-time", "throughput", "lm loss validation",
        "lm loss validation vs samples", "lm loss validation ppl", "lm loss validation-code"}) {
    EXPECT_NE(content.find(std::string("\x0a") + static_cast<char>(std::string(tag).size()) + tag +
                           "\x15"),
              std::string::npos)
        << tag;
  }
}

std::int64_t columns(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

TEST(Progress, FitsTheWidth) {
  Progress progress{420, 1000, 3.21456, 12345.6, 62.0};
  EXPECT_EQ(progress_text(progress, 60),
            " 42%  420/1000  loss 3.2146  1m 02s left  12.35K tokens/s");
  EXPECT_EQ(progress_text(progress, 30), " 42%  420/1000  loss 3.2146");
  EXPECT_EQ(progress_text(progress, 3), "");
  for (std::int64_t width = 0; width < 140; ++width) {
    EXPECT_LT(columns(progress_text(progress, width)), std::max<std::int64_t>(width, 1));
  }
  EXPECT_EQ(progress_text({0, 0, kNan, 0, 0}, 40), "  0%  0/0  loss nan  0.0s left");
}

TEST(Progress, DrawsABarWhereThereIsRoom) {
  EXPECT_NE(progress_text({1, 2, 1.0, 100.0, 1.0}, 200).find("▕███████████████               ▏"),
            std::string::npos);
  EXPECT_NE(progress_text({2, 2, 1.0, 100.0, 0.0}, 200).find("▕██████████████████████████████▏"),
            std::string::npos);
}

}  // namespace
}  // namespace bev
