// Logs of a training run: Megatron's iteration and validation lines, a live progress line, metrics
// as JSON lines, and TensorBoard scalars under Megatron's tags.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/metrics.h"
#include "parallel/router_load.h"
#include "train/evaluation.h"
#include "train/plot.h"

namespace bev {

class TensorBoardWriter;

// The report of one iteration.
struct StepReport {
  std::int64_t iteration = 0;         // counted from 1
  std::int64_t consumed_samples = 0;  // after the iteration
  std::int64_t skipped_samples = 0;   // of the whole run; omitted from the line if 0
  std::int64_t global_batch_size = 0;
  std::int64_t tokens = 0;           // of the global batch
  std::int64_t consumed_tokens = 0;  // of the whole run, after the iteration
  double epoch = 0.0;                // passes over the data after the iteration; 0: unknown
  double elapsed_seconds = 0.0;
  double flops = 0.0;  // of the global batch
  double loss = 0.0;
  std::vector<Metric> metrics = {};      // all metrics of the step; the loss is the first
  std::vector<RouterLoad> routers = {};  // of MoE layers
  double learning_rate = 0.0;
  std::optional<double> decoupled_learning_rate = {};  // of word embeddings and head
  double weight_decay = 0.0;
  double loss_scale = 1.0;
  bool skipped = false;  // no update was made
  bool nan = false;      // NaN or Inf in the loss or the gradients
  bool redone = false;   // an all-to-all of fixed size overflowed; the step was repeated
};

struct ReportOptions {
  std::int64_t train_iterations = 0;
  std::int64_t log_interval = 100;
  std::int64_t world_size = 1;
  bool log_throughput = false;  // Megatron's TFLOP/s/GPU column
  // Speed of one device, at least what the run has reached; 0: unknown, "of peak" is omitted.
  double peak_flops_per_second = 0.0;
};

// Accumulates iterations into Megatron's log line: losses averaged over iterations not skipped,
// time and throughput over all, other values from the last. Averages that are not finite or over no
// iteration are omitted.
class IterationLog {
 public:
  explicit IterationLog(const ReportOptions& options) : options_(options) {}

  void add(const StepReport& step);
  // True on multiples of the interval and after the first iteration added.
  bool due() const;
  // True if iterations were added since the last line.
  bool pending() const { return advanced_ + skipped_ > 0; }
  // Returns the line without newline, and starts the next interval.
  std::string line(std::string_view timestamp);
  // The loss in the last line that had one; NaN before.
  double last_loss() const { return last_loss_; }

 private:
  ReportOptions options_;
  StepReport last_;
  bool any_line_ = false;
  std::int64_t advanced_ = 0, skipped_ = 0, nan_ = 0, redone_ = 0, tokens_ = 0;
  double elapsed_seconds_ = 0.0, flops_ = 0.0;
  std::vector<Metric> loss_sums_;
  double last_loss_ = std::numeric_limits<double>::quiet_NaN();
};

double perplexity(double loss);  // exp(min(20, loss))
// Returns three lines, ruled with dashes, without the final newline; `where` as in "iteration 100",
// `set` is the name of one of several validation sets.
std::string validation_lines(std::string_view where, double loss, std::string_view set = "");

// One JSON object without newline. Absent and non-finite values are null.
std::string metrics_json(const StepReport& step);
// The same for an evaluation after an iteration: {"iteration", "split", "name", "loss",
// "perplexity"}.
std::string evaluation_json(std::int64_t iteration, const EvalResult& result);

// Lines of a metrics file that are of iterations before `iteration`, without an incomplete last
// line; "" if there is no file. A killed run may have logged iterations after its last checkpoint.
std::string metrics_before(const std::string& path, std::int64_t iteration);
// The losses in such lines, for a plot; of several validation sets the mean.
LossCurves curves_of(std::string_view metrics);

void write_scalars(TensorBoardWriter& writer, const StepReport& step, const ReportOptions& options);
void write_validation_scalars(TensorBoardWriter& writer, const StepReport& at,
                              const EvalResult& result);

// Says once how long the rest of a run takes: after its third iteration, by the time of the second
// and the third.
class TimeLeft {
 public:
  explicit TimeLeft(std::int64_t train_iterations) : train_iterations_(train_iterations) {}

  // Returns the line, or "".
  std::string add(const StepReport& step);

 private:
  std::int64_t train_iterations_, steps_ = 0;
  double seconds_ = 0.0;
};

struct Progress {
  std::int64_t iteration = 0;
  std::int64_t train_iterations = 0;
  double loss = 0.0;
  double tokens_per_second = 0.0;
  double seconds_left = 0.0;
};
// One line of less than `width` columns; fields that do not fit are omitted, the least important
// first.
std::string progress_text(const Progress& progress, std::int64_t width);

// Redraws one line on stderr, at most ten times a second; does nothing if stderr is not a terminal.
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
