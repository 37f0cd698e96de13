#include "optim/config.h"

#include "base/fields.h"
#include "base/text.h"

namespace bev {

namespace {
constexpr double kMaxIters = 1 << 30;
constexpr double kMaxSamples = 1LL << 38;

void optimizer_fields(OptimConfig& optim, FieldList& list) {
  list.add("optimizer", optim.optimizer,
           {{"adam", OptimizerKind::kAdamW},
            {"adamw", OptimizerKind::kAdamW},
            {"adam_l2", OptimizerKind::kAdamL2},
            {"sgd", OptimizerKind::kSgd},
            {"lion", OptimizerKind::kLion},
            {"muon", OptimizerKind::kMuon},
            {"dist_muon", OptimizerKind::kMuon},
            {"adafactor", OptimizerKind::kAdafactor},
            {"soap", OptimizerKind::kSoap}},
           "adam and adamw decouple weight decay, adam_l2 adds it to the gradient; muon and soap "
           "update hidden matrices and leave the rest to a scalar optimizer");
  list.add("adam-beta1", optim.adam_beta1, "decay of the first moment").min(0).below(1);
  list.add("adam-beta2", optim.adam_beta2, "decay of the second moment").min(0).below(1);
  list.add("adam-eps", optim.adam_eps, "added to the root of the second moment").min(0);
  list.add("sgd-momentum", optim.sgd_momentum, "momentum of sgd").min(0).below(1);
  list.add("lion-beta1", optim.lion_beta1, "lion: share of the moment in the update's sign")
      .min(0)
      .below(1);
  list.add("lion-beta2", optim.lion_beta2, "lion: decay of the moment").min(0).below(1);
  list.add("clip-grad", optim.clip_grad, "largest global gradient norm; 0: off").min(0);
  list.add("weight-decay", optim.weight_decay, "weight decay; biases and 1-D weights have none")
      .min(0);
  list.add("start-weight-decay", optim.start_weight_decay, "weight decay at the start")
      .min(0)
      .defaults_to("weight-decay");
  list.add("end-weight-decay", optim.end_weight_decay, "weight decay at the end")
      .min(0)
      .defaults_to("weight-decay");
  list.add("weight-decay-incr-style", optim.weight_decay_incr_style,
           {{"constant", WeightDecaySchedule::Style::kConstant},
            {"linear", WeightDecaySchedule::Style::kLinear},
            {"cosine", WeightDecaySchedule::Style::kCosine}},
           "how weight decay goes from start to end");
}

void muon_fields(MuonConfig& muon, FieldList& list) {
  list.add("muon-momentum", muon.momentum, "muon: decay of the moment").min(0).below(1);
  list.add("muon-nesterov", muon.nesterov, "muon: Nesterov's momentum").alias("muon-use-nesterov");
  list.add("muon-split-qkv", muon.split_qkv, "muon: q, k and v are matrices of their own")
      .negated_by("muon-no-split-qkv");
  list.add("muon-coefficient-type", muon.coefficient_type,
           {{"quintic", NewtonSchulzKind::kQuintic},
            {"simple", NewtonSchulzKind::kSimple},
            {"polar_express", NewtonSchulzKind::kPolarExpress},
            {"cans", NewtonSchulzKind::kCans},
            {"aol", NewtonSchulzKind::kAol},
            {"deepseekv4", NewtonSchulzKind::kDeepseekV4}},
           "muon: coefficients of the Newton-Schulz iteration");
  list.add("muon-num-ns-steps", muon.num_ns_steps, "muon: Newton-Schulz steps").min(1).limit(100);
  list.add("muon-scale-mode", muon.scale_mode,
           {{"spectral", MuonScaleMode::kSpectral},
            {"unit_rms_norm", MuonScaleMode::kUnitRmsNorm},
            {"shape_scaling", MuonScaleMode::kShapeScaling}},
           "muon: factor of an update by the matrix's rows and columns: the root of the larger, "
           "of rows / columns, or of that where it is above 1");
  list.add("muon-extra-scale-factor", muon.extra_scale_factor,
           "muon: another factor of updates; 0.2 is about the size of AdamW's")
      .above(0);
  list.add("muon-fp32-matmul-prec", muon.matmul_precision,
           {{"medium", MatmulPrecision::kMedium},
            {"high", MatmulPrecision::kHigh},
            {"highest", MatmulPrecision::kHighest}},
           "muon: medium multiplies in bf16, high and highest in fp32");
  list.add("muon-tp-mode", muon.tp_mode,
           {{"duplicated", MuonTpMode::kDuplicated},
            {"distributed", MuonTpMode::kDistributed},
            {"blockwise", MuonTpMode::kBlockwise}},
           "muon, matrices that tensor parallelism splits: every rank gathers them, ranks sum "
           "Gram matrices, or each part is a matrix of its own, which changes results "
           "(Megatron's default)");
  list.add("muon-scalar-optimizer", muon.scalar_optimizer,
           {{"adam", ScalarOptimizer::kAdam}, {"lion", ScalarOptimizer::kLion}},
           "muon: optimizer of embeddings, output layer, norms and biases");
}

void matrix_fields(OptimConfig& optim, FieldList& list) {
  muon_fields(optim.muon, list);
  AdafactorConfig& adafactor = optim.adafactor;
  list.add("adafactor-beta2-decay", adafactor.beta2_decay,
           "adafactor: the second moment decays by 1 - step ^ this")
      .max(0);
  list.add("adafactor-eps1", adafactor.eps1, "adafactor: least squared update; 0: by the dtype")
      .min(0);
  list.add("adafactor-eps2", adafactor.eps2, "adafactor: least size of a weight, which scales lr")
      .min(0);
  list.add("adafactor-clip-threshold", adafactor.clip_threshold,
           "adafactor: largest root mean square of an update")
      .above(0);
  list.add("soap-shampoo-beta", optim.soap.shampoo_beta, "soap: decay of the Kronecker factors")
      .min(0)
      .below(1);
}

void qk_clip_fields(QkClipConfig& qk, FieldList& list) {
  list.add("qk-clip", qk.qk_clip,
           "QK-clip (MuonClip): scale query and key weights down after an update where attention "
           "logits were above --qk-clip-threshold");
  list.add("qk-clip-alpha", qk.alpha, "QK-clip: share of the queries in that scaling")
      .min(0)
      .max(1);
  list.add("qk-clip-threshold", qk.threshold, "QK-clip: largest attention logit").above(0);
}

void dtype_fields(OptimDtypes& dtypes, FieldList& list) {
  const std::vector<std::pair<std::string, Dtype>> choices = {{"fp32", Dtype::kF32},
                                                              {"bf16", Dtype::kBf16}};
  list.add("main-params-dtype", dtypes.main_params, choices,
           "master weights; bf16 keeps no copy and updates the weights with stochastic rounding")
      .alias("megatron-fsdp-main-params-dtype");
  list.add("main-grads-dtype", dtypes.main_grads, choices,
           "gradients between micro-batches, in sums over ranks and in the optimizer")
      .alias("megatron-fsdp-main-grads-dtype");
  std::vector<std::pair<std::string, Dtype>> moments = choices;
  moments.emplace_back("fp8", Dtype::kU8);
  list.add("exp-avg-dtype", dtypes.exp_avg, moments,
           "first moment of adam; fp8 is in blocks with scales, rounded at random");
  list.add("exp-avg-sq-dtype", dtypes.exp_avg_sq, moments,
           "second moment of adam; bf16 and fp8 are rounded at random");
}

void offload_fields(OptimConfig& optim, FieldList& list) {
  list.add("optimizer-cpu-offload", optim.optimizer_cpu_offload,
           "moments and main parameters lie in host memory; the device updates them there");
  list.add("optimizer-offload-fraction", optim.optimizer_offload_fraction,
           "with --optimizer-cpu-offload: the part of the state that lies there")
      .min(0)
      .max(1);
}

void schedule_fields(OptimConfig& optim, FieldList& list) {
  list.add("lr", optim.lr, "highest learning rate").min(0);
  list.add("min-lr", optim.min_lr, "learning rate after the decay").min(0);
  list.add("lr-decay-style", optim.lr_decay_style,
           {{"constant", LrSchedule::Style::kConstant},
            {"linear", LrSchedule::Style::kLinear},
            {"cosine", LrSchedule::Style::kCosine},
            {"inverse-square-root", LrSchedule::Style::kInverseSquareRoot},
            {"WSD", LrSchedule::Style::kWsd}},
           "shape of the decay");
  list.add("lr-decay-iters", optim.lr_decay_iters, "iterations until min-lr")
      .min(0)
      .limit(kMaxIters)
      .defaults_to("train-iters");
  list.add("lr-decay-samples", optim.lr_decay_samples, "samples until min-lr")
      .min(0)
      .limit(kMaxSamples)
      .defaults_to("train-samples");
  list.add("lr-warmup-iters", optim.lr_warmup_iters, "warm-up in iterations")
      .min(0)
      .limit(kMaxIters);
  list.add("lr-warmup-samples", optim.lr_warmup_samples, "warm-up in samples")
      .min(0)
      .limit(kMaxSamples);
  list.add("lr-warmup-fraction", optim.lr_warmup_fraction, "warm-up as a part of the decay length")
      .min(0)
      .below(1);
  list.add("lr-warmup-init", optim.lr_warmup_init, "learning rate at the start of the warm-up")
      .min(0);
  list.add("lr-wsd-decay-style", optim.lr_wsd_decay_style,
           {{"exponential", LrSchedule::WsdStyle::kExponential},
            {"linear", LrSchedule::WsdStyle::kLinear},
            {"cosine", LrSchedule::WsdStyle::kCosine},
            {"minus_sqrt", LrSchedule::WsdStyle::kMinusSqrt}},
           "WSD: shape of its last part");
  list.add("lr-wsd-decay-iters", optim.lr_wsd_decay_iters, "WSD: length of its last part")
      .min(0)
      .limit(kMaxIters);
  list.add("lr-wsd-decay-samples", optim.lr_wsd_decay_samples, "WSD: length of its last part")
      .min(0)
      .limit(kMaxSamples);
}

void loss_scale_fields(OptimConfig& optim, FieldList& list) {
  list.add("loss-scale", optim.loss_scale, "fp16: constant loss scale")
      .min(0)
      .defaults_to("dynamic");
  list.add("initial-loss-scale", optim.initial_loss_scale, "fp16: first dynamic loss scale")
      .above(0);
  list.add("min-loss-scale", optim.min_loss_scale, "fp16: smallest dynamic loss scale").above(0);
  list.add("loss-scale-window", optim.loss_scale_window,
           "fp16: good steps before the scale is doubled")
      .min(1)
      .limit(kMaxIters);
  list.add("hysteresis", optim.hysteresis, "fp16: bad steps before the scale is halved")
      .min(1)
      .limit(kMaxIters);
}

// Schedule lengths in one unit (iterations or samples), with the names of their flags.
struct Lengths {
  const char* unit;
  std::int64_t train, decay, warmup, wsd_decay;
};

void check_unit(const Lengths& used, const Lengths& other, std::vector<std::string>& out) {
  if (used.train == 0) return;
  auto refuse = [&](const char* stem, std::int64_t value) {
    if (value == 0) return;
    out.push_back(concat("--", stem, "-", other.unit, ": ", value, " does not go with --train-",
                         used.unit, "; give --", stem, "-", used.unit));
  };
  refuse("lr-decay", other.decay);
  refuse("lr-warmup", other.warmup);
  refuse("lr-wsd-decay", other.wsd_decay);
}

void check_warmup(const OptimConfig& optim, std::vector<std::string>& out) {
  bool iters = optim.lr_warmup_iters > 0, samples = optim.lr_warmup_samples > 0;
  if (optim.lr_warmup_fraction == 0 || !(iters || samples)) return;
  out.push_back(concat("--lr-warmup-fraction: ", optim.lr_warmup_fraction, " and --lr-warmup-",
                       iters ? "iters" : "samples", " ",
                       iters ? optim.lr_warmup_iters : optim.lr_warmup_samples,
                       " both set the warm-up; keep one"));
}

void check_weight_decay(const OptimConfig& optim, std::vector<std::string>& out) {
  bool start = optim.start_weight_decay >= 0, end = optim.end_weight_decay >= 0;
  if (optim.weight_decay_incr_style != WeightDecaySchedule::Style::kConstant && !(start && end)) {
    out.push_back(concat(start ? "--end-weight-decay" : "--start-weight-decay",
                         ": an increasing weight decay needs both ends"));
  }
}

}  // namespace

void OptimConfig::fields(FieldList& list) {
  list.section("optimizer");
  schedule_fields(*this, list);
  optimizer_fields(*this, list);
  matrix_fields(*this, list);
  qk_clip_fields(qk, list);
  dtype_fields(dtypes, list);
  offload_fields(*this, list);
  groups.fields(list);
  loss_scale_fields(*this, list);
}

OptimDtypes OptimDtypes::for_model(Dtype model) const {
  if (model != Dtype::kF64) return *this;
  return {Dtype::kF64, Dtype::kF64, Dtype::kF64, Dtype::kF64};
}

std::vector<std::string> OptimConfig::state_problems(Dtype model) const {
  std::vector<std::string> problems;
  const auto need = [&](bool holds, const char* flag, Dtype dtype, const char* what) {
    if (dtype == Dtype::kF32 || holds) return;
    const char* value = dtype == Dtype::kU8 ? "fp8" : "bf16";
    problems.push_back(concat("--", flag, ": ", value, " needs ", what));
  };
  const bool adam = optimizer == OptimizerKind::kAdamW || optimizer == OptimizerKind::kAdamL2;
  const bool moments = adam && model != Dtype::kF64;
  const bool bf16 = model == Dtype::kBf16;
  need(bf16, "main-params-dtype", dtypes.main_params, "a model in bf16; add --bf16");
  need(adam, "main-params-dtype", dtypes.main_params, "--optimizer adam");
  need(bf16, "main-grads-dtype", dtypes.main_grads, "a model in bf16; add --bf16");
  need(moments, "exp-avg-dtype", dtypes.exp_avg,
       "--optimizer adam and a model that is not in fp64");
  need(moments, "exp-avg-sq-dtype", dtypes.exp_avg_sq,
       "--optimizer adam and a model that is not in fp64");
  if (!optimizer_cpu_offload && optimizer_offload_fraction != 1) {
    problems.push_back(concat("--optimizer-offload-fraction: ", optimizer_offload_fraction,
                              " does nothing without --optimizer-cpu-offload; add it"));
  }
  return problems;
}

std::vector<std::string> OptimConfig::resolve(std::int64_t train_iters,
                                              std::int64_t train_samples) {
  std::vector<std::string> problems;
  Lengths iters{"iters", train_iters, lr_decay_iters, lr_warmup_iters, lr_wsd_decay_iters};
  Lengths samples{"samples", train_samples, lr_decay_samples, lr_warmup_samples,
                  lr_wsd_decay_samples};
  if (train_iters == 0 || train_samples == 0) {
    check_unit(iters, samples, problems);
    check_unit(samples, iters, problems);
  }
  check_warmup(*this, problems);
  check_weight_decay(*this, problems);
  if (initial_loss_scale < min_loss_scale) {
    problems.push_back(concat("--initial-loss-scale: ", initial_loss_scale,
                              " is below --min-loss-scale ", min_loss_scale, "; raise it"));
  }
  if (lr_decay_iters == 0) lr_decay_iters = train_iters;
  if (lr_decay_samples == 0) lr_decay_samples = train_samples;
  if (start_weight_decay < 0) start_weight_decay = weight_decay;
  if (end_weight_decay < 0) end_weight_decay = weight_decay;
  return problems;
}

}  // namespace bev
