#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/text.h"

namespace bev {

namespace {
// Cosine from 1 at ratio 0 to 0 at ratio 1.
double cosine_fall(double ratio) { return 0.5 * (std::cos(std::numbers::pi * ratio) + 1.0); }

double wsd_factor(LrSchedule::WsdStyle style, double ratio) {
  switch (style) {
    case LrSchedule::WsdStyle::kLinear:
      return 1.0 - ratio;
    case LrSchedule::WsdStyle::kCosine:
      return cosine_fall(ratio);
    case LrSchedule::WsdStyle::kMinusSqrt:
      return 1.0 - std::sqrt(ratio);
    case LrSchedule::WsdStyle::kExponential:
      break;
  }
  return 2.0 * std::pow(0.5, ratio) - 1.0;
}

// Fraction of (max - min) after warmup.
double decay_factor(const LrSchedule& s, double samples) {
  double ratio = (samples - s.warmup_steps) / (s.decay_steps - s.warmup_steps);
  if (s.style == LrSchedule::Style::kCosine) return cosine_fall(ratio);
  if (s.style != LrSchedule::Style::kWsd) return 1.0 - ratio;
  double decay_start = s.decay_steps - s.wsd_decay_steps;
  if (samples <= decay_start) return 1.0;
  return wsd_factor(s.wsd_style, (samples - decay_start) / s.wsd_decay_steps);
}
}  // namespace

double LrSchedule::lr(std::int64_t consumed_samples) const {
  auto samples = static_cast<double>(consumed_samples);
  if (warmup_steps > 0 && samples <= warmup_steps) {
    return init_lr + (max_lr - init_lr) * samples / warmup_steps;
  }
  if (style == Style::kConstant) return max_lr;
  if (samples > decay_steps) return min_lr;
  if (style == Style::kInverseSquareRoot) {
    double scaled = max_lr * std::pow(std::max(warmup_steps, 1.0), 0.5);
    return std::max(min_lr, scaled / std::pow(std::max(samples, 1.0), 0.5));
  }
  return min_lr + decay_factor(*this, samples) * (max_lr - min_lr);
}

std::vector<std::string> LrSchedule::problems() const {
  std::vector<std::string> found;
  auto require = [&](bool holds, auto... parts) {
    if (!holds) found.push_back(concat(parts...));
  };
  require(min_lr >= 0, "--min-lr: ", min_lr, " is negative; use 0 or more");
  require(max_lr >= min_lr, "--lr: ", max_lr, " is below --min-lr ", min_lr,
          "; raise --lr or lower --min-lr");
  require(init_lr >= 0 && init_lr <= max_lr, "--lr-warmup-init: ", init_lr,
          " is not in reach; use a value from 0 to --lr ", max_lr);
  require(warmup_steps >= 0, "--lr-warmup-samples: ", warmup_steps, " is negative; use 0 or more");
  require(decay_steps > 0, "--lr-decay-samples: the decay takes ", decay_steps,
          " samples; give more with it or with --lr-decay-iters");
  require(decay_steps <= 0 || warmup_steps < decay_steps, "--lr-warmup-iters: the warm-up takes ",
          warmup_steps, " samples, and the decay, which includes it, ", decay_steps,
          "; shorten it (also --lr-warmup-samples, --lr-warmup-fraction) or lengthen the run "
          "(--train-iters, --epochs) or --lr-decay-iters");
  require(style != Style::kWsd || (wsd_decay_steps > 0 && wsd_decay_steps <= decay_steps),
          "--lr-wsd-decay-samples: the last decay takes ", wsd_decay_steps, " samples of ",
          decay_steps, "; give a part of them with it or with --lr-wsd-decay-iters");
  return found;
}

double WeightDecaySchedule::weight_decay(std::int64_t consumed_samples) const {
  auto samples = static_cast<double>(consumed_samples);
  if (style == Style::kConstant || steps <= 0 || samples > steps) return end;
  double ratio = samples / steps;
  double factor = style == Style::kLinear ? ratio : cosine_fall(1.0 - ratio);
  return start + factor * (end - start);
}

std::vector<std::string> WeightDecaySchedule::problems() const {
  std::vector<std::string> found;
  auto require = [&](bool holds, auto... parts) {
    if (!holds) found.push_back(concat(parts...));
  };
  require(start >= 0, "--start-weight-decay: ", start, " is negative; use 0 or more");
  require(end >= start, "--end-weight-decay: ", end, " is below --start-weight-decay ", start,
          ", but weight decay can only grow; use ", start, " or more");
  require(style != Style::kConstant || start == end,
          "--weight-decay-incr-style: constant, but --start-weight-decay ", start,
          " and --end-weight-decay ", end, " differ; use linear or cosine");
  require(style == Style::kConstant || steps > 0, "--weight-decay-incr-style: the increase takes ",
          steps, " samples; it needs 1 or more");
  return found;
}

}  // namespace bev
