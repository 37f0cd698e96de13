// Learning rate and weight decay schedules as functions of the samples consumed by successful
// steps. Rules and rounding are Megatron's; every "steps" is in samples, not iterations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bev {

struct LrSchedule {
  enum class Style : std::uint8_t { kConstant, kLinear, kCosine, kInverseSquareRoot, kWsd };
  enum class WsdStyle : std::uint8_t { kExponential, kLinear, kCosine, kMinusSqrt };

  double max_lr = 0.0;
  double min_lr = 0.0;
  double init_lr = 0.0;       // start of the warmup
  double warmup_steps = 0.0;  // may be fractional if given as a fraction of the decay
  double decay_steps = 0.0;   // including warmup
  Style style = Style::kLinear;
  WsdStyle wsd_style = WsdStyle::kExponential;
  double wsd_decay_steps = 0.0;  // final part of decay_steps

  double lr(std::int64_t consumed_samples) const;
  // Invalid values, each with a fix; empty if lr() may be called.
  std::vector<std::string> problems() const;
};

struct WeightDecaySchedule {
  enum class Style : std::uint8_t { kConstant, kLinear, kCosine };

  double start = 0.0;
  double end = 0.0;
  Style style = Style::kConstant;
  double steps = 0.0;

  double weight_decay(std::int64_t consumed_samples) const;
  std::vector<std::string> problems() const;
};

}  // namespace bev
