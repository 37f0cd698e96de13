#include "app/run_outcome.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "app/run_folder.h"
#include "base/file.h"
#include "base/output.h"
#include "base/text.h"
#include "train/report_file.h"

namespace bev {

namespace {

std::string reason_text(const RunOutcome& outcome) {
  if (!outcome.failure.empty()) {
    bool numeric = outcome.failure_kind == ErrorKind::kNumeric;
    return numeric ? "stopped by NaN or Inf" : "stopped by its data";
  }
  switch (outcome.reason) {
    case StopReason::kFinished:
      return "finished";
    case StopReason::kPatience:
      return fmt::format(
          "stopped by --early-stop-patience (validation loss {:.4f} of iteration {} was not "
          "improved "
          "by {} validations)",
          outcome.validation.best_loss, outcome.validation.best_iteration,
          outcome.validation.not_improved);
    case StopReason::kDuration:
      return "stopped by --exit-duration-in-mins";
    case StopReason::kInterval:
      return "stopped by --exit-interval";
    case StopReason::kSignal:
      return concat("stopped by signal ", outcome.signal);
  }
  return "";
}

std::string evaluation_text(const EvalResult& result) {
  std::string set = result.name.empty() ? "" : concat(" ", result.name);
  return fmt::format("{}{} {:.4f} (perplexity {:.3f})",
                     result.split == "test" ? "test" : "validation", set, result.loss,
                     perplexity(result.loss));
}

// "loss 5.5452 -> 3.2145, validation 3.3 (perplexity 27.1)"; the second loss is that of the last
// log line.
std::string losses_text(const TrainOutcome& outcome) {
  std::vector<std::string> parts;
  const LossCurves& curves = outcome.curves;
  if (outcome.iterations > 0 && !curves.train.empty()) {
    parts.push_back(
        fmt::format("loss {:.4f} -> {:.4f}", curves.train.front().y, curves.final_loss));
  }
  for (const EvalResult& result : outcome.evaluations) parts.push_back(evaluation_text(result));
  if (outcome.skipped > 0) parts.push_back(fmt::format("{} iterations skipped", outcome.skipped));
  return join(parts, ", ");
}

// One object with the rows of --metrics-out.
std::string evaluations_json(const TrainOutcome& outcome) {
  std::vector<std::string> rows;
  for (const EvalResult& result : outcome.evaluations) {
    rows.push_back(evaluation_json(outcome.last_iteration, result));
  }
  return concat("{\"iteration\":", outcome.last_iteration, ",\"evaluations\":[", join(rows, ","),
                "]}");
}

}  // namespace

void print_summary(const RunConfig& run, const RunOutcome& outcome) {
  if (run.train.json && run.train.eval.skip_train) {
    return write_stdout(evaluations_json(outcome) + "\n");
  }
  double seconds = std::max(outcome.seconds, 1e-9);
  std::string text;
  if (run.train.eval.skip_train) {
    bool whole = outcome.reason != StopReason::kSignal;
    text = concat(whole ? "evaluated after iteration " : "interrupted; weights of iteration ",
                  outcome.last_iteration);
  } else if (outcome.iterations == 0) {
    text = concat("nothing to train: the run ended after iteration ", outcome.last_iteration, " (",
                  reason_text(outcome), ")");
  } else {
    text = fmt::format("{} after {} iterations, {} samples, {} tokens in {} ({:.0f} tokens/s)",
                       reason_text(outcome), outcome.iterations, outcome.consumed_samples,
                       outcome.consumed_tokens, format_duration(outcome.seconds),
                       static_cast<double>(outcome.consumed_tokens) / seconds);
  }
  if (std::string losses = losses_text(outcome); !losses.empty()) text += "\n" + losses;
  if (outcome.validation.best_iteration > 0 && run.checkpoint.keep_best > 0) {
    text += fmt::format("\nbest validation {:.4f} after iteration {}", outcome.validation.best_loss,
                        outcome.validation.best_iteration);
  }
  if (outcome.drawn) text += fmt::format("\nloss curve: {}", run.log.loss_svg);
  if (std::string metrics = metrics_path(run); !metrics.empty()) {
    text += fmt::format("\nmetrics: {}", metrics);
  }
  if (!run.checkpoint.save.empty()) text += fmt::format("\ncheckpoints: {}", run.checkpoint.save);
  if (outcome.exported) text += fmt::format("\nmodel: {}", run.train.export_hf);
  if (outcome.curves.train.size() > 2 && !run.train.eval.skip_train) {
    text = terminal_plot(outcome.curves.train, {"loss"}) + text;
  }
  write_stdout(text + "\n");
}

bool draw_losses(const RunConfig& run, const TrainOutcome& outcome) {
  const std::string& path = run.log.loss_svg;
  bool any = !outcome.curves.train.empty() && (outcome.iterations > 0 || !path_exists(path));
  if (path.empty() || run.train.eval.skip_train || !any) return false;
  return write_report("--loss-svg", path, loss_svg(outcome.curves));
}

}  // namespace bev
