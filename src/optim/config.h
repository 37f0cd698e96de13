// The optimizer, its schedules and the loss scale.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optim/lr_schedule.h"
#include "optim/param_groups.h"
#include "tensor/dtype.h"

namespace bev {

class FieldList;

enum class OptimizerKind : std::uint8_t {
  kAdamW,   // decoupled weight decay; Megatron's "adam"
  kAdamL2,  // weight decay added to the gradient
  kSgd,
};

// In which dtype gradients and the optimizer's state are kept: f32 or bf16 each, moments also in 8
// bits (u8, see tensor/moment8.h). Main parameters in bf16 are the model's own, rounded at random
// so that small updates are not lost.
struct OptimDtypes {
  Dtype main_params = Dtype::kF32;
  Dtype main_grads = Dtype::kF32;
  Dtype exp_avg = Dtype::kF32;
  Dtype exp_avg_sq = Dtype::kF32;

  // What a model in `model` keeps: one in f64 has all of it in f64.
  OptimDtypes for_model(Dtype model) const;
};

struct OptimConfig {
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  double clip_grad = 1.0;  // 0: off
  OptimDtypes dtypes;
  // The part of the state (by elements) that lies in host memory.
  bool optimizer_cpu_offload = false;
  double optimizer_offload_fraction = 1.0;

  // The schedule; lengths in iterations or in samples, whichever the run counts in.
  double lr = 3e-4;
  double min_lr = 0.0;
  LrSchedule::Style lr_decay_style = LrSchedule::Style::kLinear;
  std::int64_t lr_decay_iters = 0;  // 0: the whole run
  std::int64_t lr_decay_samples = 0;
  std::int64_t lr_warmup_iters = 0;
  std::int64_t lr_warmup_samples = 0;
  double lr_warmup_fraction = 0.0;  // of the decay length; 0: not given
  double lr_warmup_init = 0.0;
  LrSchedule::WsdStyle lr_wsd_decay_style = LrSchedule::WsdStyle::kExponential;
  std::int64_t lr_wsd_decay_iters = 0;
  std::int64_t lr_wsd_decay_samples = 0;

  double weight_decay = 0.01;
  double start_weight_decay = -1.0;  // < 0: weight_decay
  double end_weight_decay = -1.0;    // < 0: weight_decay
  WeightDecaySchedule::Style weight_decay_incr_style = WeightDecaySchedule::Style::kConstant;

  ParamGroupConfig groups;

  // fp16.
  double loss_scale = 0.0;  // 0: dynamic
  double initial_loss_scale = 4294967296.0;
  double min_loss_scale = 1.0;
  std::int64_t loss_scale_window = 1000;
  std::int64_t hysteresis = 2;

  void fields(FieldList& list);

  double offloaded_fraction() const {
    return optimizer_cpu_offload ? optimizer_offload_fraction : 0;
  }
  // For a run of so many iterations or samples (the other is 0; both 0: unknown): fills in the
  // decay length and the ends of the weight decay. Returns which flags do not go together; whether
  // the values make a schedule is said by LrSchedule and WeightDecaySchedule.
  std::vector<std::string> resolve(std::int64_t train_iters, std::int64_t train_samples);
  // Which dtypes do not go with a model in `model` or with the optimizer, and what offload lacks.
  std::vector<std::string> state_problems(Dtype model) const;
};

}  // namespace bev
