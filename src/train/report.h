// What a training run says about itself: Megatron's iteration and validation lines, a live progress
// line, metrics as JSON lines, and TensorBoard scalars under Megatron's tags.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/metrics.h"
#include "base/append_file.h"
#include "parallel/router_load.h"

namespace bev {

class TensorBoardWriter;

// One iteration.
struct StepReport {
  std::int64_t iteration = 0;         // 1 for the first
  std::int64_t consumed_samples = 0;  // after it
  std::int64_t skipped_samples = 0;   // of the whole run; left out of the line when 0
  std::int64_t global_batch_size = 0;
  std::int64_t tokens = 0;  // of its global batch
  double elapsed_seconds = 0.0;
  double flops = 0.0;  // of its global batch
  double loss = 0.0;
  std::vector<Metric> metrics = {};      // all that the step tells; the loss is the first
  std::vector<RouterLoad> routers = {};  // of layers with experts
  double learning_rate = 0.0;
  std::optional<double> decoupled_learning_rate = {};  // of word embeddings and head
  double weight_decay = 0.0;
  double loss_scale = 1.0;
  bool skipped = false;  // no update was made
  bool nan = false;      // NaN or Inf in the loss or the gradients
  bool redone = false;   // tokens for experts did not fit at first
};

struct ReportOptions {
  std::int64_t train_iterations = 0;
  std::int64_t log_interval = 100;
  std::int64_t world_size = 1;
  bool log_throughput = false;         // Megatron's TFLOP/s/GPU column
  double peak_flops_per_second = 0.0;  // of one device; 0: unknown, "of peak" is left out
};

// Gathers iterations and makes Megatron's line of them: losses averaged over those not skipped,
// time and throughput over all, the rest from the last. Averages that are negative, NaN or over no
// iteration are left out.
class IterationLog {
 public:
  explicit IterationLog(const ReportOptions& options) : options_(options) {}

  void add(const StepReport& step);
  // On multiples of the interval and after the first iteration added.
  bool due() const;
  // Without line end; starts the next interval.
  std::string line(std::string_view timestamp);

 private:
  ReportOptions options_;
  StepReport last_;
  bool any_line_ = false;
  std::int64_t advanced_ = 0, skipped_ = 0, nan_ = 0, redone_ = 0, tokens_ = 0;
  double elapsed_seconds_ = 0.0, flops_ = 0.0;
  std::vector<Metric> loss_sums_;
};

double perplexity(double loss);  // exp(min(20, loss))
// Three lines, ruled with dashes, without the last line end; `where` as in "iteration 100".
std::string validation_lines(std::string_view where, double loss);

// One JSON object, without line end. Absent and non-finite numbers are null.
std::string metrics_json(const StepReport& step);

// A file with one such object per iteration, complete after every call.
class MetricsWriter {
 public:
  MetricsWriter(const std::string& path, OpenMode mode) : file_(path, mode) {}
  void write(const StepReport& step) { file_.write(metrics_json(step) + '\n'); }

 private:
  AppendFile file_;
};

// Takes lines of `iteration` and later out of such a file, and what is no whole line; without a
// file nothing happens. A run that was killed may have written more than its last checkpoint has.
void keep_metrics_before(const std::string& path, std::int64_t iteration);

void write_scalars(TensorBoardWriter& writer, const StepReport& step, const ReportOptions& options);
void write_validation_scalars(TensorBoardWriter& writer, const StepReport& at, double loss);

struct Progress {
  std::int64_t iteration = 0;
  std::int64_t train_iterations = 0;
  double loss = 0.0;
  double tokens_per_second = 0.0;
  double seconds_left = 0.0;
};
// One line of less than `width` columns; what does not fit is left out, least important first.
std::string progress_text(const Progress& progress, std::int64_t width);

// Redraws one line on stderr, at most ten times a second; does nothing when that is no terminal.
class ProgressLine {
 public:
  explicit ProgressLine(std::int64_t train_iterations);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(const StepReport& step);
  void clear();

 private:
  std::int64_t train_iterations_;
  bool terminal_;
  bool drawn_ = false;
  double drawn_at_ = 0.0;
  double step_seconds_ = 0.0;  // smoothed
  double tokens_per_second_ = 0.0;
};

}  // namespace bev
