// Settings of the optimizer, the learning rate and weight decay schedules, and the loss scale.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optim/lr_schedule.h"
#include "optim/newton_schulz_kind.h"
#include "optim/param_groups.h"
#include "tensor/dtype.h"

namespace bev {

class FieldList;

enum class OptimizerKind : std::uint8_t {
  kAdamW,   // decoupled weight decay; Megatron's "adam"
  kAdamL2,  // weight decay added to the gradient
  kSgd,
  kLion,
  kMuon,       // hidden matrices; the rest by its scalar optimizer
  kAdafactor,  // that of torch.optim
  kSoap,       // hidden matrices; the rest by AdamW
};

// How Muon treats a matrix that tensor parallelism splits.
enum class MuonTpMode : std::uint8_t {
  kDuplicated,   // every rank orthogonalises the gathered matrix
  kDistributed,  // ranks keep their parts and sum the Gram matrix
  kBlockwise,    // each part is a matrix of its own: results depend on the layout
};
enum class MuonScaleMode : std::uint8_t { kSpectral, kUnitRmsNorm, kShapeScaling };
enum class MatmulPrecision : std::uint8_t { kMedium, kHigh, kHighest };
enum class ScalarOptimizer : std::uint8_t { kAdam, kLion };

struct MuonConfig {
  double momentum = 0.9;
  bool nesterov = false;
  bool split_qkv = true;
  NewtonSchulzKind coefficient_type = NewtonSchulzKind::kQuintic;
  std::int64_t num_ns_steps = 5;
  MuonScaleMode scale_mode = MuonScaleMode::kSpectral;
  double extra_scale_factor = 1;
  MatmulPrecision matmul_precision = MatmulPrecision::kMedium;
  MuonTpMode tp_mode = MuonTpMode::kDuplicated;
  ScalarOptimizer scalar_optimizer = ScalarOptimizer::kAdam;
};

struct AdafactorConfig {
  double beta2_decay = -0.8;
  double eps1 = 0;  // 0: the machine epsilon of the dtype
  double eps2 = 1e-3;
  double clip_threshold = 1;
};

struct SoapConfig {
  double shampoo_beta = 0.95;
};

// QK-clip: after an update, query and key weights of heads whose largest attention logit of the
// step is above the threshold are scaled down.
struct QkClipConfig {
  bool qk_clip = false;
  double alpha = 0.5;  // share of the queries in the scaling
  double threshold = 100;
};

// Dtypes of gradients and optimizer state: f32 or bf16, for moments also 8 bits (u8, see
// tensor/moment8.h). With bf16 main_params the model's parameters are the master weights, updated
// with stochastic rounding so that small updates are not lost.
struct OptimDtypes {
  Dtype main_params = Dtype::kF32;
  Dtype main_grads = Dtype::kF32;
  Dtype exp_avg = Dtype::kF32;
  Dtype exp_avg_sq = Dtype::kF32;

  // The dtypes for a model in `model`: all are f64 for an f64 model.
  OptimDtypes for_model(Dtype model) const;
};

struct OptimConfig {
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  double lion_beta1 = 0.95, lion_beta2 = 0.98;
  MuonConfig muon;
  AdafactorConfig adafactor;
  SoapConfig soap;
  QkClipConfig qk;
  double clip_grad = 1.0;  // 0: off
  OptimDtypes dtypes;
  // The fraction of the state (by elements) in host memory.
  bool optimizer_cpu_offload = false;
  double optimizer_offload_fraction = 1.0;

  // Learning rate schedule; lengths are in iterations or in samples, as the run is.
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
  // Fills in the decay length and the ends of the weight decay for a run of `train_iters` or
  // `train_samples` (the other is 0; both 0: unknown). Returns contradictions between flags;
  // LrSchedule and WeightDecaySchedule check the values.
  std::vector<std::string> resolve(std::int64_t train_iters, std::int64_t train_samples);
  // Problems of the state dtypes with a model in `model` or with the optimizer, and of the offload
  // settings.
  std::vector<std::string> state_problems(Dtype model) const;
};

}  // namespace bev
