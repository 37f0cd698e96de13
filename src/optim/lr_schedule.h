// Learning rate and weight decay as functions of the samples consumed by successful steps.
// Rules and rounding are Megatron's; the unit of every "steps" is samples, not iterations.
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
  double init_lr = 0.0;       // where the warm-up starts
  double warmup_steps = 0.0;  // a fraction of the decay may give a part of a sample
  double decay_steps = 0.0;   // warm-up included
  Style style = Style::kLinear;
  WsdStyle wsd_style = WsdStyle::kExponential;
  double wsd_decay_steps = 0.0;  // the last part of decay_steps

  double lr(std::int64_t consumed_samples) const;
  // What is wrong with the values, each with its cure; empty when lr() may be called.
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
