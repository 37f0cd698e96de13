#include "train/run_reports.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace bev {

namespace {

// A file that begins with the rows of earlier iterations.
class RowsFile final : public ReportFile {
 public:
  RowsFile(std::string name, std::string path, std::string earlier)
      : ReportFile(std::move(name)), path_(std::move(path)), earlier_(std::move(earlier)) {
    flush();
  }

 private:
  std::unique_ptr<AppendFile> open() override {
    make_directories(parent_path(path_));
    if (earlier_.empty()) return std::make_unique<AppendFile>(path_, OpenMode::kTruncate);
    write_file(path_, earlier_);
    return std::make_unique<AppendFile>(path_, OpenMode::kAppend);
  }

  std::string path_, earlier_;
};

bool same_path(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(a, ignored) ==
         std::filesystem::weakly_canonical(b, ignored);
}

// Reading a report never ends a run either.
std::string earlier_rows(const std::string& path, std::int64_t first_iteration) {
  try {
    return metrics_before(path, first_iteration);
  } catch (const Error& error) {
    log_warning(concat(error.what(), "; the curve of the loss begins anew"));
    return "";
  }
}

}  // namespace

RunReports::RunReports(const LogConfig& log, const ReportOptions& options,
                       const RunHistory& history)
    : options_(options), log_(options), time_left_(options.train_iterations) {
  bool resumed = history.first_iteration > 1;
  auto rows_in = [&](const std::string& path) {
    return resumed ? earlier_rows(path, history.first_iteration) : "";
  };
  std::string rows;
  if (!history.load.empty()) rows = rows_in(join_path(history.load, kRunMetricsName));
  curves_ = curves_of(rows);
  std::string kept = history.save.empty() ? "" : join_path(history.save, kRunMetricsName);
  if (!kept.empty()) history_ = std::make_unique<RowsFile>(kept, kept, rows);
  const std::string& given = log.metrics_out;
  if (!given.empty() && !same_path(given, kept)) {
    metrics_ = std::make_unique<RowsFile>(concat("--metrics-out ", given), given, rows_in(given));
  }
  if (!log.tensorboard_dir.empty()) {
    tensorboard_ = std::make_unique<TensorBoardWriter>(log.tensorboard_dir);
  }
  if (log.log_progress && !history.save.empty()) {
    progress_log_ = std::make_unique<ProgressLog>(history.save, options.world_size);
  }
  if (log.progress) progress_ = std::make_unique<ProgressLine>(options.train_iterations);
  tensorboard_interval_ = std::max<std::int64_t>(log.tensorboard_log_interval, 1);
}

void RunReports::write_row(const std::string& row) {
  if (metrics_) metrics_->write(row + '\n');
  if (history_) history_->write(row + '\n');
}

void RunReports::write_line() {
  log_info(log_.line(local_timestamp()));
  curves_.final_loss = log_.last_loss();
}

void RunReports::step(const StepReport& report) {
  curves_.train.push_back({static_cast<double>(report.iteration), report.loss});
  write_row(metrics_json(report));
  if (tensorboard_ && report.iteration % tensorboard_interval_ == 0) {
    write_scalars(*tensorboard_, report, options_);
  }
  log_.add(report);
  if (log_.due() || report.iteration == options_.train_iterations) write_line();
  if (std::string left = time_left_.add(report); !left.empty()) log_info(left);
  if (progress_) progress_->update(report);
  if (progress_log_) progress_log_->step(report.iteration, report.consumed_tokens, report.flops);
}

void RunReports::saved(std::int64_t iteration) {
  if (progress_log_) progress_log_->saved(iteration);
}

void RunReports::evaluation(const StepReport& at, const EvalResult& result) {
  write_row(evaluation_json(at.iteration, result));
  if (tensorboard_) write_validation_scalars(*tensorboard_, at, result);
}

void RunReports::validation(const StepReport& at, std::span<const EvalResult> results) {
  for (const EvalResult& result : results) {
    evaluation(at, result);
    log_info(validation_lines(concat("iteration ", at.iteration), result.loss, result.name));
  }
  if (tensorboard_) tensorboard_->flush();
  curves_.validation.push_back({static_cast<double>(at.iteration), mean_loss(results)});
}

void RunReports::test(const StepReport& at, std::span<const EvalResult> results) {
  for (const EvalResult& result : results) {
    evaluation(at, result);
    std::string where = concat("iteration ", at.iteration, " on test set");
    log_info(validation_lines(where, result.loss, result.name));
  }
}

void RunReports::finish() {
  if (log_.pending()) write_line();
  if (progress_) progress_->clear();
  if (tensorboard_) tensorboard_->flush();
  if (metrics_) metrics_->finish();
  if (history_) history_->finish();
}

}  // namespace bev
