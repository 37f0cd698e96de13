#include "models/layer.h"

#include <algorithm>
#include <cmath>

#include "autograd/offload.h"
#include "autograd/recompute.h"
#include "base/text.h"
#include "ops/elementwise.h"

namespace bev {

namespace {

Activation kernel_activation(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kGelu:
      return Activation::kGelu;
    case ActivationKind::kGeluTanh:
      return Activation::kGeluTanh;
    case ActivationKind::kSilu:
      return Activation::kSilu;
    case ActivationKind::kRelu:
      return Activation::kRelu;
    case ActivationKind::kSquaredRelu:
      return Activation::kSquaredRelu;
    case ActivationKind::kQuickGelu:
      return Activation::kQuickGelu;
  }
  return Activation::kGelu;
}

// Projections back into the residual stream start smaller, so that its variance does not grow with
// depth.
double output_std(const ModelConfig& config) {
  return config.init_method_std / std::sqrt(2.0 * static_cast<double>(config.num_layers));
}

SoftmaxSink softmax_sink(SoftmaxKind kind) {
  switch (kind) {
    case SoftmaxKind::kVanilla:
      return SoftmaxSink::kNone;
    case SoftmaxKind::kOffByOne:
      return SoftmaxSink::kOne;
    case SoftmaxKind::kLearnable:
      return SoftmaxSink::kLearned;
  }
  return SoftmaxSink::kNone;
}

LatentOptions latent_options(const ModelConfig& config) {
  LatentOptions o;
  o.latent_size = config.kv_lora_rank;
  o.q_latent_size = config.q_lora_rank;
  o.nope_size = config.qk_head_dim;
  o.rope_size = config.qk_pos_emb_head_dim;
  o.norms = config.qk_layernorm;
  o.norm = norm_options(config);
  if (config.latent_norm_epsilon > 0) o.norm.epsilon = config.latent_norm_epsilon;
  return o;
}

}  // namespace

AttentionOptions attention_options(const ModelConfig& config, std::int64_t number,
                                   const BuildOptions& build) {
  AttentionOptions o;
  o.hidden_size = config.hidden_size;
  o.heads = config.num_attention_heads;
  o.kv_heads = config.kv_heads();
  o.head_size = config.head_size();
  o.v_head_size = config.v_head_size();
  o.qkv_bias = config.has_qkv_bias();
  o.proj_bias = config.has_proj_bias();
  o.qk_norm = config.qk_layernorm;
  o.norm = norm_options(config);
  o.norm.center = false;  // the per-head norm is always an RMSNorm
  o.scale = config.attention_scale();
  if (config.scale_by_inverse_layer) o.scale /= static_cast<double>(number + 1);
  o.softcap = config.attn_logit_softcapping;
  o.window = config.windowed(number) ? config.window_size : -1;
  o.causal = config.causal;
  o.sink = softmax_sink(config.softmax_type);
  o.rotary_interleaved = config.rotary_interleaved;
  o.dropout = config.attention_dropout;
  o.init_std = config.init_method_std;
  o.proj_init_std = output_std(config);
  o.recompute_core = build.recompute.core_attention;
  auto place = static_cast<std::size_t>(number);
  o.context = build.context[std::min(place, build.context.size() - 1)];
  o.tensor_parallel = build.tensor_parallel;
  if (config.multi_latent_attention) o.latent = latent_options(config);
  o.latent.recompute_up = build.recompute.latent_up;
  return o;
}

namespace {

MlpOptions mlp_options(const ModelConfig& config, const BuildOptions& build) {
  MlpOptions o;
  o.hidden_size = config.hidden_size;
  o.ffn_size = config.ffn_size();
  o.activation = {kernel_activation(config.activation),
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
  o.bias_update_rate = config.moe_training.bias_update_rate;
  o.shared_expert_size = moe.shared_expert_size;
  o.shared_expert_gate = moe.shared_expert_gate;
  // With all of the layer it is run again anyway.
  o.recompute_shared = build.recompute.shared_experts && !build.recompute.experts;
  o.router = router_spec(config.moe_training);
  o.capacity = {config.moe_training.capacity_factor, config.moe_training.drop_policy};
  o.parallel = build.experts;
  return o;
}

}  // namespace

NormOptions norm_options(const ModelConfig& config) {
  return {config.normalization == NormKind::kLayerNorm, config.norm_epsilon,
          config.apply_layernorm_1p};
}

DecoderLayer::DecoderLayer(const ModelConfig& config, std::int64_t number,
                           const BuildOptions& options, const std::string& name)
    : number_(number),
      parallel_residual_(config.parallel_residual),
      hidden_dropout_(config.hidden_dropout),
      recompute_(options.recompute),
      input_norm_(make_norm(name + ".input_layernorm", config.hidden_size, norm_options(config))),
      mlp_norm_(make_norm(name + ".pre_mlp_layernorm", config.hidden_size, norm_options(config))),
      attention_(
          make_attention(name + ".self_attention", attention_options(config, number, options))) {
  if (config.has_experts(number)) {
    moe_.emplace(name + ".mlp", moe_options(config, options));
  } else {
    mlp_.emplace(name + ".mlp", mlp_options(config, options));
  }
  if (config.post_norms) {
    post_attention_norm_ =
        make_norm(name + ".post_attention_layernorm", config.hidden_size, norm_options(config));
    post_mlp_norm_ =
        make_norm(name + ".post_mlp_layernorm", config.hidden_size, norm_options(config));
  }
  set_recipe(options.fp8.recipe(number, config.num_layers));
}

void DecoderLayer::set_recipe(const Fp8Recipe& recipe) {
  std::vector<Mlp*> mlps;
  if (mlp_) mlps.push_back(&*mlp_);
  if (moe_ && moe_->shared) mlps.push_back(&*moe_->shared);
  std::vector<Linear*> linears;
  attention_->linears(linears);
  for (Mlp* mlp : mlps) mlp->linears(linears);
  for (Linear* linear : linears) linear->weight.fp8 = recipe;
  // Only blocks: a scale of all rows of experts would follow from who shares the rank with whom.
  if (moe_ && recipe.scaling == Fp8Scaling::kBlockwise) moe_->fc1.fp8 = moe_->fc2.fp8 = recipe;
  // Scales of a tensor's own follow from numbers that its producer can find on the way.
  input_norm_.amax = mlp_norm_.amax = recipe.needs_amax();
  if (post_attention_norm_) post_attention_norm_->amax = recipe.needs_amax();
  if (post_mlp_norm_) post_mlp_norm_->amax = recipe.needs_amax();
  for (Mlp* mlp : mlps) mlp->options.activation.amax = recipe.needs_amax();
  // What only these layers read is made while they round it, and never written. Routers, and a part
  // that runs again, read it too. Only for scales of blocks: with one for the tensor, writing it
  // was measured to be faster.
  bool rounds = recipe.scaling == Fp8Scaling::kBlockwise && recipe.weight_gradient;
  input_norm_.unwritten = rounds;
  mlp_norm_.unwritten = rounds && mlp_ && !recompute_.mlp;
  for (Mlp* mlp : mlps) mlp->options.activation.unwritten = rounds;
}

void DecoderLayer::params(std::vector<Param*>& list) {
  input_norm_.params(list);
  attention_->params(list);
  if (post_attention_norm_) post_attention_norm_->params(list);
  mlp_norm_.params(list);
  if (moe_) moe_->params(list);
  if (mlp_) mlp_->params(list);
  if (post_mlp_norm_) post_mlp_norm_->params(list);
}

Var DecoderLayer::attend(Context& ctx, const Var& normalised, const LayerInput& input) const {
  Var out = attention_->forward(ctx, normalised, input);
  if (post_attention_norm_) out = norm(ctx, out, post_attention_norm_->spec(false));
  return dropout(ctx, out, hidden_dropout_, *input.layout, RandomUse::kProjDropout);
}

Var DecoderLayer::feed_forward(Context& ctx, const Var& normalised, const LayerInput& input) const {
  auto run = [this, layout = input.layout](Context& to, const Var& x) {
    return moe_ ? moe_->forward(to, x, *layout) : mlp_->forward(to, x, layout->tokens);
  };
  bool again = moe_ ? recompute_.experts : recompute_.mlp;
  if (again) {
    mark_kept(ctx, moe_ ? OffloadPart::kExpertFc1 : OffloadPart::kMlpFc1, normalised);
  }
  Var out = again ? recompute(ctx, "recompute mlp", normalised, run) : run(ctx, normalised);
  if (post_mlp_norm_) out = norm(ctx, out, post_mlp_norm_->spec(false));
  return dropout(ctx, out, hidden_dropout_, *input.layout, RandomUse::kMlpDropout);
}

Var DecoderLayer::forward(Context& ctx, const Var& x, const LayerInput& input) const {
  ctx.layer = number_;
  Var attended = attend(ctx, norm(ctx, x, input_norm_.spec(recompute_.norms)), input);
  if (parallel_residual_) {
    mark_kept(ctx, OffloadPart::kMlpNorm, x);
    Var fed = feed_forward(ctx, norm(ctx, x, mlp_norm_.spec(recompute_.norms)), input);
    return add(ctx, x, add(ctx, attended, fed));
  }
  AddNorm next = add_norm(ctx, attended, x, mlp_norm_.spec(recompute_.norms));
  mark_kept(ctx, OffloadPart::kMlpNorm, next.sum);
  return add(ctx, next.sum, feed_forward(ctx, next.normalised, input));
}

}  // namespace bev
