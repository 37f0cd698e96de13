#include "train/report.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/divide.h"
#include "base/file.h"
#include "base/text.h"
#include "plan/flops.h"
#include "train/tensorboard.h"

namespace bev {

namespace {
bool is_loss(const Metric& metric) { return metric.style == MetricStyle::kLoss; }

// Names of losses are unchanged; in other names spaces are replaced.
std::string spelled(const Metric& metric, char space) {
  std::string text = metric.name;
  if (!is_loss(metric)) std::ranges::replace(text, ' ', space);
  return text;
}
std::string json_key(const Metric& metric) {
  return metric.key.empty() ? spelled(metric, '_') : metric.key;
}

void add_loss(std::vector<Metric>& sums, const Metric& loss) {
  auto found = std::ranges::find(sums, loss.name, &Metric::name);
  if (found == sums.end()) {
    sums.push_back(loss);
  } else {
    found->value += loss.value;
  }
}

// The layer with the most loaded expert.
std::string expert_text(const std::vector<RouterLoad>& routers) {
  const RouterLoad& worst = *std::ranges::max_element(routers, {}, &RouterLoad::tokens_max);
  return fmt::format(
      " tokens per expert (min, p50, p99, max; layer {}): {:.0f}, {:.0f}, {:.0f}, {:.0f} |",
      worst.layer, worst.tokens_min, worst.tokens_p50, worst.tokens_p99, worst.tokens_max);
}

// The layer that drops most tokens, if any.
std::string dropped_text(const std::vector<RouterLoad>& routers) {
  const RouterLoad& worst = *std::ranges::max_element(routers, {}, &RouterLoad::dropped);
  if (worst.dropped == 0) return "";
  return fmt::format(" dropped choices (layer {}): {:.2f}% |", worst.layer, 100 * worst.dropped);
}

double per_second(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0.0; }
}  // namespace

void IterationLog::add(const StepReport& step) {
  last_ = step;
  skipped_ += step.skipped ? 1 : 0;
  advanced_ += step.skipped ? 0 : 1;
  nan_ += step.nan ? 1 : 0;
  redone_ += step.redone ? 1 : 0;
  tokens_ += step.tokens;
  flops_ += step.flops;
  elapsed_seconds_ += step.elapsed_seconds;
  if (step.skipped) return;
  for (const Metric& metric : step.metrics) {
    if (is_loss(metric)) add_loss(loss_sums_, metric);
  }
}

bool IterationLog::due() const {
  if (advanced_ + skipped_ == 0) return false;
  return !any_line_ || last_.iteration % std::max<std::int64_t>(options_.log_interval, 1) == 0;
}

std::string IterationLog::line(std::string_view timestamp) {
  std::string text;
  auto put = [&](fmt::string_view format, const auto&... values) {
    fmt::format_to(std::back_inserter(text), fmt::runtime(format), values...);
  };
  double steps = static_cast<double>(std::max<std::int64_t>(advanced_ + skipped_, 1));
  put(" [{}] iteration {:8d}/{:8d} |", timestamp, last_.iteration, options_.train_iterations);
  put(" consumed samples: {:12d} |", last_.consumed_samples);
  if (last_.skipped_samples > 0) put(" skipped samples: {:12d} |", last_.skipped_samples);
  put(" elapsed time per iteration (ms): {:.1f} |", elapsed_seconds_ / steps * 1000.0);
  double tflops =
      elapsed_seconds_ > 0 ? tflops_per_device(flops_, elapsed_seconds_, options_.world_size) : 0.0;
  if (options_.log_throughput) put(" throughput per GPU (TFLOP/s/GPU): {:.1f} |", tflops);
  put(" learning rate: {:.6E} |", last_.learning_rate);
  if (last_.decoupled_learning_rate) {
    put(" decoupled learning rate: {:.6E} |", *last_.decoupled_learning_rate);
  }
  put(" global batch size: {:5d} |", last_.global_batch_size);
  for (const Metric& sum : loss_sums_) {
    double average = sum.value / static_cast<double>(std::max<std::int64_t>(advanced_, 1));
    if (std::isfinite(average)) put(" {}: {:.6E} |", sum.name, average);
    if (&sum == &loss_sums_.front()) last_loss_ = average;
  }
  put(" loss scale: {:.1f} |", last_.loss_scale);
  for (const Metric& metric : last_.metrics) {
    int decimals = metric.style == MetricStyle::kCount ? 0 : 3;
    bool shown = !is_loss(metric) && metric.style != MetricStyle::kHidden;
    if (shown) put(" {}: {:.{}f} |", metric.name, metric.value, decimals);
  }
  if (!last_.routers.empty()) {
    put("{}{}", expert_text(last_.routers), dropped_text(last_.routers));
  }
  put(" number of skipped iterations: {:3d} |", skipped_);
  put(" number of nan iterations: {:3d} |", nan_);
  if (redone_ > 0) put(" number of redone iterations: {:3d} |", redone_);
  put(" tokens/s: {:.0f} |", per_second(static_cast<double>(tokens_), elapsed_seconds_));
  double& peak = options_.peak_flops_per_second;
  if (peak > 0) {
    // A machine that was busy with other work during the measurement is faster than measured.
    peak = std::max(peak, tflops * 1e12);
    put(" of peak: {:.1f}% |", tflops * 1e12 / peak * 100.0);
  }
  if (last_.epoch > 0) put(" epoch: {:.2f} |", last_.epoch);
  IterationLog next(options_);
  next.any_line_ = true;
  next.last_loss_ = last_loss_;
  *this = next;
  return text;
}

double perplexity(double loss) { return std::exp(std::min(loss, 20.0)); }

std::string validation_lines(std::string_view where, double loss, std::string_view set) {
  std::string text =
      fmt::format(" validation{}{} loss at {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ",
                  set.empty() ? "" : "-", set, where, loss, perplexity(loss));
  std::string rule(text.size() + 1, '-');
  return rule + '\n' + text + '\n' + rule;
}

std::string metrics_json(const StepReport& step) {
  std::string text;
  auto key = [&](std::string_view name) {
    fmt::format_to(std::back_inserter(text), "{}\"{}\":", text.empty() ? "{" : ",", name);
  };
  auto number = [&](std::string_view name, double value, const char* format = "{}") {
    key(name);
    text += std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "null";
  };
  auto integer = [&](std::string_view name, std::int64_t value) {
    key(name);
    text += fmt::format("{}", value);
  };
  auto flag = [&](std::string_view name, bool value) {
    key(name);
    text += value ? "true" : "false";
  };
  integer("iteration", step.iteration);
  integer("consumed_samples", step.consumed_samples);
  integer("consumed_tokens", step.consumed_tokens);
  for (const Metric& metric : step.metrics) {
    number(json_key(metric), metric.value, metric.style == MetricStyle::kCount ? "{:.0f}" : "{}");
  }
  number("lr", step.learning_rate);
  if (step.decoupled_learning_rate) number("decoupled_lr", *step.decoupled_learning_rate);
  number("wd", step.weight_decay);
  number("loss_scale", step.loss_scale);
  number("tokens_per_second", per_second(static_cast<double>(step.tokens), step.elapsed_seconds));
  number("elapsed_ms", step.elapsed_seconds * 1000.0);
  integer("batch_size", step.global_batch_size);
  flag("skipped", step.skipped);
  flag("nan", step.nan);
  if (step.redone) flag("redone", true);
  if (step.epoch > 0) number("epoch", step.epoch);
  if (!step.routers.empty()) {
    key("routers");
    for (std::size_t i = 0; i < step.routers.size(); ++i) {
      text += fmt::format("{}{{\"layer\":{}", i == 0 ? "[" : ",", step.routers[i].layer);
      for_numbers(step.routers[i], number);
      text += '}';
    }
    text += ']';
  }
  return text + '}';
}

std::string evaluation_json(std::int64_t iteration, const EvalResult& result) {
  nlohmann::ordered_json row;
  row["iteration"] = iteration;
  row["split"] = result.split;
  row["name"] = result.title();
  row["loss"] = result.loss;  // what is not finite is dumped as null
  row["perplexity"] = perplexity(result.loss);
  return row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string metrics_before(const std::string& path, std::int64_t iteration) {
  constexpr std::string_view kBegin = "{\"iteration\":";
  if (!path_exists(path)) return "";
  std::string kept, all = read_file(path);
  for (std::size_t begin = 0, end = 0; (end = all.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    std::string_view line = std::string_view(all).substr(begin, end + 1 - begin);
    if (!line.starts_with(kBegin)) continue;
    std::int64_t number = 0;
    std::from_chars(line.data() + kBegin.size(), line.data() + line.size(), number);
    if (number > 0 && number < iteration) kept += line;
  }
  return kept;
}

LossCurves curves_of(std::string_view metrics) {
  LossCurves curves;
  double sets = 0;  // of the last validation
  for (const std::string& line : split(metrics, '\n')) {
    auto row = nlohmann::json::parse(line, nullptr, false);
    if (!row.is_object() || !row.contains("loss")) continue;
    double x = row.value("iteration", 0.0);
    double y = row["loss"].is_number() ? row["loss"].get<double>() : NAN;
    auto found = row.find("split");
    if (found == row.end()) {
      curves.train.push_back({x, y});
    } else if (*found == "valid" && !curves.validation.empty() && curves.validation.back().x == x) {
      double& mean = curves.validation.back().y;
      mean += (y - mean) / ++sets;
    } else if (*found == "valid") {
      curves.validation.push_back({x, y});
      sets = 1;
    }
  }
  return curves;
}

void write_scalars(TensorBoardWriter& writer, const StepReport& step,
                   const ReportOptions& options) {
  auto both = [&](std::string_view tag, double value) {
    writer.scalar(tag, step.iteration, value);
    writer.scalar(concat(tag, " vs samples"), step.consumed_samples, value);
  };
  both("learning-rate", step.learning_rate);
  if (step.decoupled_learning_rate) both("decoupled-learning-rate", *step.decoupled_learning_rate);
  both("batch-size", static_cast<double>(step.global_batch_size));
  for (const Metric& metric : step.metrics) {
    if (is_loss(metric)) both(metric.name, metric.value);
  }
  for (const RouterLoad& load : step.routers) {
    for_numbers(load, [&](const char* name, double value) {
      writer.scalar(concat("moe/layer_", load.layer, "/", name), step.iteration, value);
    });
  }
  both("loss-scale", step.loss_scale);
  for (const Metric& metric : step.metrics) {
    if (!is_loss(metric)) both(spelled(metric, '-'), metric.value);
  }
  writer.scalar("iteration-time", step.iteration, step.elapsed_seconds);
  if (step.elapsed_seconds > 0) {
    writer.scalar("throughput", step.iteration,
                  tflops_per_device(step.flops, step.elapsed_seconds, options.world_size));
  }
  if (step.skipped_samples > 0) {
    writer.scalar("skipped-train-samples", step.iteration,
                  static_cast<double>(step.skipped_samples));
  }
}

void write_validation_scalars(TensorBoardWriter& writer, const StepReport& at,
                              const EvalResult& result) {
  auto both = [&](std::string_view tag, double value) {
    writer.scalar(tag, at.iteration, value);
    writer.scalar(concat(tag, " vs samples"), at.consumed_samples, value);
  };
  std::string split = result.split == "test" ? "test" : "validation";
  std::string tag = concat("lm loss ", split, result.name.empty() ? "" : "-", result.name);
  both(tag, result.loss);
  both(concat(tag, " ppl"), perplexity(result.loss));
}

std::string TimeLeft::add(const StepReport& step) {
  constexpr std::int64_t kFirst = 2, kLast = 3;
  if (++steps_ >= kFirst) seconds_ += step.elapsed_seconds;
  std::int64_t left = train_iterations_ - step.iteration;
  if (steps_ != kLast || left < 1) return "";
  double each = seconds_ / static_cast<double>(kLast - kFirst + 1);
  return fmt::format("time left: about {} for {} iterations of {:.1f} ms",
                     format_duration(static_cast<double>(left) * each), left, each * 1000.0);
}

namespace {
std::string bar(double share, std::int64_t columns) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  auto eighths = static_cast<std::int64_t>(share * static_cast<double>(columns * 8));
  std::string text = "▕";
  for (std::int64_t i = 0; i < eighths / 8; ++i) text += "█";
  text += kEighths[eighths % 8];
  text.append(static_cast<std::size_t>(columns - ceil_div(eighths, 8)), ' ');
  return text + "▏";
}

std::int64_t terminal_columns() {
  winsize size{};
  bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

void write_terminal(std::string_view text) {
  // A failure to write a progress line is ignored.
  [[maybe_unused]] ssize_t put = ::write(STDERR_FILENO, text.data(), text.size());
}
}  // namespace

std::string progress_text(const Progress& progress, std::int64_t width) {
  constexpr std::int64_t kMinBar = 8, kMaxBar = 30;
  double share = progress.train_iterations > 0 ? static_cast<double>(progress.iteration) /
                                                     static_cast<double>(progress.train_iterations)
                                               : 0.0;
  share = std::clamp(share, 0.0, 1.0);
  // Sorted by importance.
  const std::string fields[] = {
      fmt::format("{:3.0f}%", std::floor(share * 100.0)),
      fmt::format("  {}/{}", progress.iteration, progress.train_iterations),
      fmt::format("  loss {:.4f}", progress.loss),
      fmt::format("  {} left", format_duration(progress.seconds_left)),
      fmt::format("  {} tokens/s", format_count(std::round(progress.tokens_per_second))),
  };
  std::string text;
  std::size_t kept = 0;
  std::int64_t room = width - 1;
  while (kept < std::size(fields) && static_cast<std::int64_t>(fields[kept].size()) <= room) {
    room -= static_cast<std::int64_t>(fields[kept++].size());
  }
  for (std::size_t i = 0; i < kept; ++i) {
    text += fields[i];
    if (i == 0 && kept == std::size(fields) && room >= kMinBar + 3) {
      text += ' ' + bar(share, std::min(room - 3, kMaxBar));
    }
  }
  return text;
}

ProgressLine::ProgressLine(std::int64_t train_iterations)
    : train_iterations_(train_iterations), terminal_(::isatty(STDERR_FILENO) == 1) {}

void ProgressLine::update(const StepReport& step) {
  if (!terminal_) return;
  constexpr double kRedrawSeconds = 0.1, kKeep = 0.9;
  double speed = per_second(static_cast<double>(step.tokens), step.elapsed_seconds);
  bool first = step_seconds_ == 0.0;
  step_seconds_ =
      first ? step.elapsed_seconds : kKeep * step_seconds_ + (1.0 - kKeep) * step.elapsed_seconds;
  tokens_per_second_ = first ? speed : kKeep * tokens_per_second_ + (1.0 - kKeep) * speed;
  double now = monotonic_seconds();
  if (drawn_ && now - drawn_at_ < kRedrawSeconds && step.iteration < train_iterations_) return;
  auto left = static_cast<double>(std::max<std::int64_t>(train_iterations_ - step.iteration, 0));
  Progress progress{step.iteration, train_iterations_, step.loss, tokens_per_second_,
                    left * step_seconds_};
  write_terminal("\r" + progress_text(progress, terminal_columns()) + "\x1b[K");
  drawn_ = true;
  drawn_at_ = now;
}

void ProgressLine::clear() {
  if (drawn_) write_terminal("\r\x1b[K");
  drawn_ = false;
}

}  // namespace bev
