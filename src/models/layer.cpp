#include "models/layer.h"

#include <algorithm>
#include <cmath>

#include "autograd/offload.h"
#include "autograd/recompute.h"
#include "base/scoped_value.h"
#include "base/text.h"
#include "models/lora.h"
#include "ops/elementwise.h"

namespace bev {

namespace {

MlpOptions mlp_options(const ModelConfig& config, const BuildOptions& build) {
  MlpOptions o;
  o.hidden_size = config.hidden_size;
  o.ffn_size = config.ffn_size();
  o.activation = {config.activation,
                  config.gated,
                  build.recompute.activations,
                  {config.activation_clamp, config.glu_linear_offset}};
  o.bias = config.has_mlp_bias();
  o.init_std = config.init_method_std;
  o.down_init_std = output_std(config);
  o.tensor_parallel = build.tensor_parallel;
  return o;
}

RouterSpec router_spec(const MoeTraining& training) {
  RouterSpec spec;
  spec.losses = {training.coefficient("aux_loss"), training.coefficient("seq_aux_loss"),
                 training.coefficient("global_aux_loss"), training.z_loss_coeff};
  spec.dtype = training.router_dtype;
  spec.sinkhorn = training.uses_sinkhorn();
  spec.jitter = training.input_jitter_eps;
  spec.random_logits = training.force_load_balancing;
  return spec;
}

MoeOptions moe_options(const ModelConfig& config, const BuildOptions& build) {
  const MoeConfig& moe = config.moe;
  MoeOptions o;
  o.expert = mlp_options(config, build);
  o.expert.activation.regenerate = build.recompute.expert_activations;
  o.expert.ffn_size = config.expert_ffn_size();
  o.experts = moe.num_experts;
  o.routing = config.moe_training.routing(moe.routing());
  o.router_bias = moe.router_bias;
  o.expert_bias = moe.expert_bias;
  o.scale_input = moe.scale_input;
  o.bias_update_rate = config.moe_training.bias_update_rate;
  o.shared_expert_size = moe.shared_expert_size;
  o.shared_expert_gate = moe.shared_expert_gate;
  // Recomputing the whole MoE layer includes the shared expert.
  o.recompute_shared = build.recompute.shared_experts && !build.recompute.experts;
  o.router = router_spec(config.moe_training);
  o.capacity = {config.moe_training.capacity_factor, config.moe_training.drop_policy};
  o.parallel = build.experts;
  return o;
}

}  // namespace

double output_std(const ModelConfig& config) {
  return config.init_method_std / std::sqrt(2.0 * static_cast<double>(config.num_layers));
}

void set_unit(std::span<Param* const> params, const std::string& unit) {
  for (Param* param : params) param->unit = unit;
}

NormOptions norm_options(const ModelConfig& config) {
  return {.center = config.normalization != NormKind::kRmsNorm,
          .epsilon = config.norm_epsilon,
          .plus_one = config.apply_layernorm_1p,
          .bias = config.normalization == NormKind::kLayerNorm};
}

DecoderLayer::DecoderLayer(const ModelConfig& config, const LayerSpec& spec, std::int64_t number,
                           const BuildOptions& options, const std::string& name)
    : number_(number),
      parallel_residual_(spec.parallel_residual),
      norms_residual_(spec.norms == NormPlacement::kResidual),
      residual_multiplier_(spec.residual_multiplier),
      hidden_dropout_(config.hidden_dropout),
      recompute_(options.recompute),
      mixer_(
          spec.mixer->make(concat(name, ".", spec.mixer->module), config, spec, number, options)) {
  auto add_norm = [&](std::optional<Norm>& to, const char* part) {
    to = make_norm(name + part, config.hidden_size, norm_options(config));
  };
  bool feeds = spec.feed_forward != FeedForwardKind::kNone;
  const bool post = spec.norms == NormPlacement::kPost || norms_residual_;
  if (!post && spec.input_norm) add_norm(input_norm_, ".input_layernorm");
  if (feeds && !post && spec.norms != NormPlacement::kShared) {
    add_norm(mlp_norm_, ".pre_mlp_layernorm");
  }
  if (spec.feed_forward == FeedForwardKind::kExperts) {
    moe_.emplace(name + ".mlp", moe_options(config, options));
  } else if (feeds) {
    mlp_.emplace(name + ".mlp", mlp_options(config, options));
  }
  if (post || spec.norms == NormPlacement::kPreAndPost) {
    add_norm(post_attention_norm_, ".post_attention_layernorm");
    if (feeds) add_norm(post_mlp_norm_, ".post_mlp_layernorm");
  }
  mark_linear_weights();
  set_recipe(options.fp8.recipe(number, config.num_layers), config.lora.used());
  if (config.lora.used()) add_adapters(config);
  std::vector<Param*> all, mixing;
  params(all);
  set_unit(all, name);
  mixer_->params(mixing);
  if (!spec.mixer->fsdp_unit.empty()) set_unit(mixing, concat(name, ".", spec.mixer->fsdp_unit));
}

void DecoderLayer::linears(std::vector<Linear*>& list) {
  mixer_->linears(list);
  if (mlp_) mlp_->linears(list);
  if (moe_ && moe_->shared) moe_->shared->linears(list);
}

void DecoderLayer::mark_linear_weights() {
  std::vector<Linear*> dense;
  linears(dense);
  for (Linear* linear : dense) linear->weight.linear = true;
  std::vector<GroupedLinear*> grouped;
  if (moe_) moe_->grouped_linears(grouped);
  for (GroupedLinear* linear : grouped) linear->weight.linear = true;
}

void DecoderLayer::add_adapters(const ModelConfig& config) {
  const std::vector<LoraRules> rules = lora_rules(config);
  int stream = 0;
  auto add = [&](const Param& weight, std::vector<LowRank>& adapters) {
    for (const LoraRules& rule : rules) {
      for (const AdaptedModule& module : rule.find(weight)) {
        adapters.push_back(make_low_rank(weight, module.spec));
        adapters.back().stream = stream;
      }
    }
    ++stream;
  };
  std::vector<Linear*> dense;
  linears(dense);
  for (Linear* linear : dense) add(linear->weight, linear->adapters);
  std::vector<GroupedLinear*> grouped;
  if (moe_) moe_->grouped_linears(grouped);
  for (GroupedLinear* linear : grouped) add(linear->weight, linear->adapters);
}

// `adapted`: linear layers have adapters, which read their inputs in the model's dtype.
void DecoderLayer::set_recipe(const Fp8Recipe& recipe, bool adapted) {
  std::vector<Mlp*> mlps;
  if (mlp_) mlps.push_back(&*mlp_);
  if (moe_ && moe_->shared) mlps.push_back(&*moe_->shared);
  std::vector<Linear*> dense;
  linears(dense);
  for (Linear* linear : dense) linear->weight.fp8 = recipe;
  // Experts use blockwise scales only: a per-tensor scale would depend on which experts share a
  // rank.
  if (moe_ && recipe.scaling == Fp8Scaling::kBlockwise) {
    moe_->fc1.weight.fp8 = moe_->fc2.weight.fp8 = recipe;
  }
  // Scales from the tensor itself need its amax, which the producer kernel can compute.
  for (std::optional<Norm>* norm :
       {&input_norm_, &mlp_norm_, &post_attention_norm_, &post_mlp_norm_}) {
    if (*norm) (*norm)->amax = recipe.needs_amax();
  }
  for (Mlp* mlp : mlps) mlp->options.activation.amax = recipe.needs_amax();
  // Fused quantisation: tensors read only by FP8 linears are never materialised. Routers, adapters
  // and recomputed parts read the plain tensor, so they are excluded. Only with blockwise scales:
  // with one scale per tensor, materialising was measured to be faster.
  bool rounds = recipe.scaling == Fp8Scaling::kBlockwise && recipe.wgrad && !adapted;
  const bool shared = input_norm_ && !mlp_norm_;  // also read by the MLP
  if (input_norm_) input_norm_->unwritten = rounds && (!shared || (mlp_ && !recompute_.mlp));
  if (mlp_norm_) mlp_norm_->unwritten = rounds && mlp_ && !recompute_.mlp;
  for (Mlp* mlp : mlps) mlp->options.activation.unwritten = rounds;
}

void DecoderLayer::params(std::vector<Param*>& list) {
  if (input_norm_) input_norm_->params(list);
  mixer_->params(list);
  if (post_attention_norm_) post_attention_norm_->params(list);
  if (mlp_norm_) mlp_norm_->params(list);
  if (moe_) moe_->params(list);
  if (mlp_) mlp_->params(list);
  if (post_mlp_norm_) post_mlp_norm_->params(list);
}

Var DecoderLayer::mix(Context& ctx, const Var& normalised, const LayerInput& input) const {
  ScopedValue<const SequenceLayout*> random_numbers(ctx.layout, input.layout);
  Var out = mixer_->forward(ctx, normalised, input);
  if (post_attention_norm_ && !norms_residual_) {
    out = norm(ctx, out, post_attention_norm_->spec(false));
  }
  if (residual_multiplier_ != 1) out = scaled(ctx, out, residual_multiplier_);
  return dropout(ctx, out, hidden_dropout_, *input.layout, RandomUse::kProjDropout);
}

Var DecoderLayer::feed_forward(Context& ctx, const Var& normalised, const LayerInput& input) const {
  auto run = [this, layout = input.layout](Context& to, const Var& x) {
    ScopedValue<const SequenceLayout*> random_numbers(to.layout, layout);
    return moe_ ? moe_->forward(to, x, *layout) : mlp_->forward(to, x, layout->tokens);
  };
  bool again = moe_ ? recompute_.experts : recompute_.mlp;
  if (again) {
    mark_kept(ctx, moe_ ? OffloadPart::kExpertFc1 : OffloadPart::kMlpFc1, normalised);
  }
  Var out = again ? recompute(ctx, "recompute mlp", normalised, run) : run(ctx, normalised);
  if (post_mlp_norm_ && !norms_residual_) out = norm(ctx, out, post_mlp_norm_->spec(false));
  if (residual_multiplier_ != 1) out = scaled(ctx, out, residual_multiplier_);
  return dropout(ctx, out, hidden_dropout_, *input.layout, RandomUse::kMlpDropout);
}

Var DecoderLayer::forward_normed_sums(Context& ctx, const Var& x, const LayerInput& input) const {
  auto sum_norm = [&](const Var& out, const Var& residual, const Norm& norm) {
    return add_norm(ctx, out, residual, norm.spec(false)).normalised;
  };
  Var y = sum_norm(mix(ctx, x, input), x, *post_attention_norm_);
  return post_mlp_norm_ ? sum_norm(feed_forward(ctx, y, input), y, *post_mlp_norm_) : y;
}

Var DecoderLayer::forward(Context& ctx, const Var& x, const LayerInput& input) const {
  ctx.layer = number_;
  if (norms_residual_) return forward_normed_sums(ctx, x, input);
  const bool feeds = mlp_ || moe_;
  Var normalised = input_norm_ ? norm(ctx, x, input_norm_->spec(recompute_.norms)) : x;
  if (parallel_residual_ && feeds) {
    Var mixed = mix(ctx, normalised, input);
    if (mlp_norm_) {
      normalised = {};
      mark_kept(ctx, OffloadPart::kMlpNorm, x);
      normalised = norm(ctx, x, mlp_norm_->spec(recompute_.norms));
    }
    return add(ctx, x, add(ctx, mixed, feed_forward(ctx, normalised, input)));
  }
  Var mixed = mix(ctx, normalised, input);
  normalised = {};
  if (!mlp_norm_) {
    Var sum = add(ctx, x, mixed);
    return feeds ? add(ctx, sum, feed_forward(ctx, sum, input)) : sum;
  }
  AddNorm next = add_norm(ctx, mixed, x, mlp_norm_->spec(recompute_.norms));
  mark_kept(ctx, OffloadPart::kMlpNorm, next.sum);
  return add(ctx, next.sum, feed_forward(ctx, next.normalised, input));
}

}  // namespace bev
