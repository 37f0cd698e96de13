// All reports of a run while it runs, on rank 0: log lines, progress, metrics, TensorBoard, and the
// curve of the losses. A failure to write one is a warning.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "train/config.h"
#include "train/progress_log.h"
#include "train/report.h"
#include "train/report_file.h"
#include "train/tensorboard.h"

namespace bev {

// Metrics of a whole run in the folder of its checkpoints; written whatever --metrics-out says.
inline constexpr char kRunMetricsName[] = "metrics.jsonl";

// Where the metrics of the run are kept and, if it is resumed, where the earlier ones are.
struct RunHistory {
  std::string save, load;            // folders of checkpoints; "": none
  std::int64_t first_iteration = 1;  // of this process; later ones are forgotten
};

class RunReports {
 public:
  RunReports(const LogConfig& log, const ReportOptions& options, const RunHistory& history);

  void step(const StepReport& report);
  void validation(const StepReport& at, std::span<const EvalResult> results);
  void test(const StepReport& at, std::span<const EvalResult> results);
  // The checkpoint of an iteration is complete.
  void saved(std::int64_t iteration);
  // The last log line, and a last try to write what could not be written.
  void finish();

  // Losses of the whole run, those before it was resumed too.
  const LossCurves& curves() const { return curves_; }

 private:
  void write_row(const std::string& row);
  void write_line();
  void evaluation(const StepReport& at, const EvalResult& result);

  ReportOptions options_;
  IterationLog log_;
  TimeLeft time_left_;
  std::unique_ptr<ReportFile> metrics_, history_;
  std::unique_ptr<TensorBoardWriter> tensorboard_;
  std::unique_ptr<ProgressLine> progress_;
  std::unique_ptr<ProgressLog> progress_log_;  // null unless it is asked for
  std::int64_t tensorboard_interval_ = 1;
  LossCurves curves_;
};

}  // namespace bev
