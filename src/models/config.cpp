#include "models/config.h"

#include <algorithm>
#include <cmath>

#include "base/fields.h"
#include "base/text.h"
#include "models/layer_list.h"
#include "models/rope.h"

namespace bev {

namespace {

constexpr double kMaxSize = 1 << 24;  // keeps multiplied sizes within 64 bits

// Parses Megatron's "a,b" (keys from i - a to i + b) and returns a; b must be 0.
std::string read_window(std::string_view text, std::string& problem) {
  std::string_view inner = trim(text);
  if (inner.starts_with('(') && inner.ends_with(')')) inner = inner.substr(1, inner.size() - 2);
  std::vector<std::string> parts = split(inner, ',');
  if (parts.size() > 2 || (parts.size() == 2 && trim(parts[1]) != "0")) {
    problem = concat("'", text, "' reaches to the right; give one number a, or a,0");
  }
  return std::string(trim(parts[0]));
}

void shape_fields(ModelConfig& model, FieldList& list) {
  list.add(
          "model-family", model.family,
          "model family: weight names, and the settings of its smallest preset for all that is not "
          "given")
      .alias("family");
  list.add("num-layers", model.num_layers, "transformer layers")
      .defaults_to("given, or from --preset or --hf-model")
      .min(0)
      .limit(1 << 20)
      .alias("encoder-num-layers");
  list.add("hidden-size", model.hidden_size, "width of the residual stream")
      .defaults_to("given, or from --preset or --hf-model")
      .min(0)
      .limit(kMaxSize);
  list.add("ffn-hidden-size", model.ffn_hidden_size, "inner width of the MLP")
      .min(0)
      .limit(kMaxSize)
      .defaults_to("4 hidden-size; 8/3 of it in multiples of 64 when gated");
  list.add("num-attention-heads", model.num_attention_heads, "query heads")
      .defaults_to("given, or from --preset or --hf-model")
      .min(0)
      .limit(1 << 20);
  list.add("num-query-groups", model.num_query_groups, "key and value heads (1: multi-query)")
      .min(0)
      .limit(1 << 20)
      .defaults_to("num-attention-heads");
  list.shorthand("group-query-attention", {{"num-query-groups", "1"}},
                 "grouped queries; one group unless --num-query-groups says more");
  list.add("kv-channels", model.kv_channels, "size of one head")
      .min(0)
      .limit(1 << 20)
      .defaults_to("hidden-size / num-attention-heads");
  list.add("vocab-size", model.vocab_size, "true vocabulary size; never padded in the model")
      .min(0)
      .limit(1 << 28)
      .defaults_to("that of the tokenizer, else of the model");
  list.add("max-position-embeddings", model.max_position_embeddings,
           "longest sequence of the model; rows of a learned position table")
      .min(0)
      .limit(1 << 28)
      .defaults_to("seq-length");
}

void position_fields(ModelConfig& model, FieldList& list) {
  list.add("position-embedding-type", model.position_embedding_type,
           {{"learned_absolute", PositionKind::kLearned},
            {"rope", PositionKind::kRope},
            {"none", PositionKind::kNone},
            {"yarn", PositionKind::kRope}},
           "how tokens know their position; yarn: rope with --rope-scaling-type yarn");
  list.shorthand("use-rotary-position-embeddings", {{"position-embedding-type", "rope"}},
                 "rotary positions");
  list.add("rotary-base", model.rotary_base, "base of the rotary frequencies").above(0);
  list.add("rotary-base-local", model.rotary_base_local,
           "base of windowed layers, which are never scaled")
      .min(0)
      .defaults_to("rotary-base");
  list.add("rotary-percent", model.rotary_percent, "part of each head that is rotated")
      .above(0)
      .max(1);
  list.add("rotary-interleaved", model.rotary_interleaved,
           "rotate neighbouring pairs instead of halves");
  list.add("no-rope-freq", model.no_rope_layers,
           "N: every N-th layer goes without rotary positions; or a list with 1 (without) or 0 for "
           "each layer")
      .min(0)
      .limit(1 << 20)
      .reads(read_layer_list)
      .defaults_to("rotary positions in all layers");
}

void attention_fields(ModelConfig& model, FieldList& list) {
  list.add("qk-layernorm", model.qk_layernorm,
           "normalise queries and keys per head before rotation");
  list.add("qk-norm-type", model.qk_norm_kind,
           {{"head", QkNorm::kHead},
            {"head_after_rope", QkNorm::kHeadAfterRope},
            {"unit_after_rope", QkNorm::kUnitAfterRope},
            {"width", QkNorm::kWidth}},
           "--qk-layernorm: of each head before or after rotation (unit: without weights, in "
           "layers that rotate), or of all heads of a token together");
  list.add("softmax-scale", model.softmax_scale, "factor of the attention scores")
      .min(0)
      .defaults_to("1 / sqrt(head size)");
  list.add("scale-attn-by-inverse-layer-idx", model.scale_by_inverse_layer,
           "divide the scores by the layer's number as well");
  list.add("attn-logit-softcapping", model.attn_logit_softcapping,
           "scores become cap * tanh(score / cap); 0: off")
      .min(0);
  list.add("window-size", model.window_size,
           "sliding window: earlier keys a token sees besides its own, with --no-causal as many "
           "later ones "
           "too; a or Megatron's a,0; 0: all")
      .min(0)
      .limit(kMaxSize)
      .reads(read_window);
  list.add("window-attn-skip-freq", model.window_layers,
           "N: every N-th layer sees all keys; or a list with 1 (windowed), 2 (windows do not "
           "slide: "
           "chunks of --window-size + 1 tokens) or 0 for each layer, also as [1,1,0]*8")
      .min(0)
      .limit(1 << 20)
      .reads(read_layer_list)
      .defaults_to("all layers windowed when --window-size is given");
  list.add("causal", model.causal, "tokens see earlier tokens only");
  list.add(
      "softmax-type", model.softmax_type,
      {{"vanilla", SoftmaxSink::kNone},
       {"off-by-one", SoftmaxSink::kOne},
       {"learnable", SoftmaxSink::kLearned}},
      "what joins the sum of attention's softmax: nothing, 1, or a learned share of each head");
}

void latent_fields(ModelConfig& model, FieldList& list) {
  list.add("multi-latent-attention", model.multi_latent_attention,
           "multi-head latent attention (MLA): queries, keys and values are projected from small "
           "latents");
  list.add("q-lora-rank", model.q_lora_rank, "size of the latent of queries; 0: none")
      .min(0)
      .limit(kMaxSize);
  list.add("kv-lora-rank", model.kv_lora_rank, "size of the latent of keys and values")
      .min(1)
      .limit(kMaxSize);
  list.add("qk-head-dim", model.qk_head_dim,
           "latent attention: dims of a query or key head without a position")
      .min(1)
      .limit(1 << 20);
  list.add("qk-pos-emb-head-dim", model.qk_pos_emb_head_dim,
           "latent attention: dims of a query or key head that are rotated")
      .min(1)
      .limit(1 << 20);
  list.add("v-head-dim", model.v_head_dim, "latent attention: dims of a value head")
      .min(1)
      .limit(1 << 20);
  list.add("latent-norm-epsilon", model.latent_norm_epsilon,
           "latent attention: added to the variance of latents")
      .min(0)
      .max(1)
      .defaults_to("norm-epsilon");
  IndexerConfig& indexer = model.indexer;
  list.add(
          "dsa-indexer-topk", indexer.topk,
          "sparse attention (DSA): keys that an indexer chooses for a query; sequences may have as "
          "many tokens; 0: none")
      .min(0)
      .limit(1 << 28);
  list.add("dsa-indexer-n-heads", indexer.heads, "sparse attention: heads of the indexer")
      .min(1)
      .limit(1 << 16);
  list.add("dsa-indexer-head-dim", indexer.head_size, "sparse attention: dims of these heads")
      .min(1)
      .limit(1 << 16);
  list.add("dsa-indexer-shared-layers", indexer.shared_layers,
           "sparse attention: a 1 (uses the choice of an earlier layer) or 0 for each layer")
      .min(0)
      .max(1);
}

void block_fields(ModelConfig& model, FieldList& list) {
  list.add("normalization", model.normalization,
           {{"LayerNorm", NormKind::kLayerNorm},
            {"RMSNorm", NormKind::kRmsNorm},
            {"LayerNormWithoutBias", NormKind::kLayerNormWithoutBias}},
           "kind of norm");
  list.add("norm-epsilon", model.norm_epsilon, "added to the variance").above(0).max(1);
  list.add("apply-layernorm-1p", model.apply_layernorm_1p, "norms multiply by 1 + weight");
  list.add("norm-placement", model.norm_placement,
           {{"pre", NormPlacement::kPre},
            {"post", NormPlacement::kPost},
            {"pre_and_post", NormPlacement::kPreAndPost},
            {"shared", NormPlacement::kShared},
            {"residual", NormPlacement::kResidual}},
           "norms of a layer: before attention and MLP, after each, both, one before the two of "
           "a --parallel-residual block, or after each residual sum");
  list.shorthand("post-norms", {{"norm-placement", "pre_and_post"}},
                 "norms after attention and MLP as well");
  list.add("parallel-residual", model.parallel_residual, "attention and MLP read the same input");
  list.add("residual-multiplier", model.residual_multiplier,
           "factor of what attention and MLP add to the residual stream")
      .above(0);
  list.add("activation", model.activation,
           {{"gelu", Activation::kGelu},
            {"gelu_tanh", Activation::kGeluTanh},
            {"silu", Activation::kSilu},
            {"relu", Activation::kRelu},
            {"squared_relu", Activation::kSquaredRelu},
            {"quick_gelu", Activation::kQuickGelu},
            {"xielu", Activation::kXielu}},
           "activation of the MLP");
  list.add("gated", model.gated, "gated MLP: act(gate) * up");
  list.add("activation-func-clamp-value", model.activation_clamp,
           "gated MLP: the gate is at most this, and up within plus and minus it; 0: no limit")
      .min(0);
  list.add("glu-linear-offset", model.glu_linear_offset, "gated MLP: added to up");
  list.shorthand("swiglu", {{"gated", "true"}, {"activation", "silu"}},
                 "--gated --activation silu");
  list.shorthand("quick-geglu", {{"gated", "true"}, {"activation", "quick_gelu"}},
                 "--gated --activation quick_gelu");
  list.shorthand("squared-relu", {{"activation", "squared_relu"}}, "--activation squared_relu");
  list.add("add-bias-linear", model.add_bias_linear, "biases in all linear layers")
      .negated_by("disable-bias-linear");
  list.add("add-qkv-bias", model.add_qkv_bias, "biases of query, key and value alone");
  list.add("add-proj-bias", model.add_proj_bias, "bias of the attention output alone");
  list.add("add-mlp-bias", model.add_mlp_bias, "biases of the MLP alone");
}

void end_fields(ModelConfig& model, FieldList& list) {
  list.add("untie-embeddings-and-output-weights", model.untie_embeddings_and_output_weights,
           "give the output layer weights of its own");
  list.add("embedding-multiplier", model.embedding_multiplier, "factor of the token embeddings");
  list.add("add-head-bias", model.add_head_bias, "bias of the output layer");
  list.add("logit-scale", model.logit_scale, "factor of the logits");
  list.add("final-logit-softcapping", model.final_logit_softcapping,
           "logits become cap * tanh(logit / cap); 0: off")
      .min(0);
  list.add("mtp-num-layers", model.mtp_num_layers,
           "modules of multi-token prediction (MTP): layers after the last that predict later "
           "tokens")
      .min(0)
      .limit(64);
  list.add("mtp-loss-scaling-factor", model.mtp_loss_scaling_factor,
           "weight of multi-token prediction in the loss, shared by its depths")
      .min(0);
  list.add(
          "num-labels", model.num_labels,
          "outputs of a head for sequence classification in place of the output layer; 1: a reward "
          "model, 0: a language model")
      .min(0)
      .limit(1 << 20);
  list.add("pad-token", model.pad_token,
           "sequence classification: token that is skipped at the end of a sequence; -1: none")
      .min(-1)
      .limit(1 << 28);
  list.add("hidden-dropout", model.hidden_dropout, "dropout before each residual sum")
      .min(0)
      .below(1);
  list.add("attention-dropout", model.attention_dropout, "dropout of attention weights")
      .min(0)
      .below(1);
  list.add("padding-row", model.padding_row,
           "vocabulary row that looking it up gives no gradient, as Hugging Face's pad_token_id; "
           "-1: none")
      .min(-1)
      .limit(1 << 28);
  list.add("init-method-std", model.init_method_std,
           "standard deviation of initial weights; output projections have it over sqrt(2 layers)")
      .min(0);
  list.add("embedding-init-method-std", model.embedding_init_method_std,
           "standard deviation of initial embeddings")
      .min(0)
      .defaults_to("init-method-std");
  list.add("init-method-xavier-uniform", model.init_method_xavier_uniform,
           "initial hidden matrices are uniform within sqrt(6 / (rows + columns))");
}

void mup_fields(MupConfig& mup, FieldList& list) {
  list.add("use-mup", mup.use_mup,
           "MuP: initial weights, learning rates and logits follow the width over "
           "--mup-base-hidden-size, so that a small model's learning rate fits a large one");
  list.add("mup-base-hidden-size", mup.base_hidden_size, "MuP: width that nothing changes at")
      .min(0)
      .limit(kMaxSize)
      .defaults_to("hidden-size");
  list.add("mup-embedding-mult", mup.embedding_mult, "MuP: factor of the token embeddings")
      .above(0);
  list.add("mup-output-mult", mup.output_mult, "MuP: factor of the logits").above(0);
  list.add("mup-base-head-dim", mup.base_head_dim,
           "MuP: head size at which attention scores are as without it; 0: scores are q k over the "
           "head size")
      .min(0)
      .limit(1 << 20);
  list.add("mup-attn-scale-power", mup.attn_scale_power,
           "MuP: attention scores are divided by the head size to this power")
      .min(0);
}

}  // namespace

void RopeScaling::fields(FieldList& list) {
  list.section("rope-scaling");
  list.add("rope-scaling-type", kind,
           {{"default", RopeScalingKind::kDefault},
            {"rope", RopeScalingKind::kDefault},
            {"linear", RopeScalingKind::kLinear},
            {"dynamic", RopeScalingKind::kDynamic},
            {"llama3", RopeScalingKind::kLlama3},
            {"yarn", RopeScalingKind::kYarn},
            {"longrope", RopeScalingKind::kLongRope}},
           "how rotary frequencies are stretched to longer sequences; default or rope: not at all")
      .alias("rope-type");
  list.shorthand("use-rope-scaling",
                 {{"rope-scaling-type", "llama3"},
                  {"rope-scaling-factor", "8"},
                  {"rope-original-max-position-embeddings", "8192"}},
                 "Llama 3's scaling from 8192 positions, factor 8 unless given");
  list.add("rope-scaling-factor", factor, "by how much sequences are longer")
      .alias("rotary-scaling-factor")
      .above(0);
  list.add("rope-original-max-position-embeddings", original_max_positions,
           "sequence length before scaling")
      .alias("yarn-original-max-position-embeddings")
      .alias("original-max-position-embeddings")
      .min(0)
      .limit(1 << 28)
      .defaults_to("max-position-embeddings");
  list.add("rope-low-freq-factor", low_freq_factor, "llama3: longest unscaled share").above(0);
  list.add("rope-high-freq-factor", high_freq_factor, "llama3: shortest scaled share").above(0);
  list.add("yarn-beta-fast", beta_fast, "yarn: turns above which a dim is not scaled")
      .alias("beta-fast")
      .above(0);
  list.add("yarn-beta-slow", beta_slow, "yarn: turns below which a dim is fully scaled")
      .alias("beta-slow")
      .above(0);
  list.add("mscale", mscale, "yarn: strength of the magnitude correction; 0: none given").min(0);
  list.add("mscale-all-dim", mscale_all_dim, "yarn: its divisor; 0: none given").min(0);
  list.add("rope-attention-factor", attention_factor, "yarn, longrope: factor of cos and sin")
      .min(0)
      .defaults_to("from the scaling factor");
  list.add("yarn-correction-range-round-to-int", truncate, "yarn: round the correction range");
  list.add("longrope-short-factor", short_factor, "longrope: divisors within the original length")
      .above(0);
  list.add("longrope-long-factor", long_factor, "longrope: divisors beyond the original length")
      .above(0);
  list.add("query-scaling-beta", queries.beta,
           "queries are multiplied by 1 + beta log(1 + floor((position + shift) / period)), in "
           "layers without rotary positions; 0: off")
      .min(0);
  list.add("query-scaling-period", queries.period, "positions between two steps of that factor")
      .min(1)
      .limit(1 << 28);
  list.add("query-scaling-shift", queries.shift, "added to the position in that factor")
      .min(0)
      .limit(1 << 28);
  list.add("query-scaling-all-layers", queries.all_layers, "that factor also where queries rotate");
}

void ModelConfig::fields(FieldList& list) {
  list.section("model");
  shape_fields(*this, list);
  position_fields(*this, list);
  attention_fields(*this, list);
  latent_fields(*this, list);
  block_fields(*this, list);
  end_fields(*this, list);
  mup_fields(mup, list);
  encoder.fields(list);
  rope_scaling.fields(list);
  moe.fields(list);
  moe_training.fields(list);
  lora.fields(list);
}

bool ModelConfig::has_experts(std::int64_t layer) const {
  return moe.in_layer(std::min(layer, num_layers - 1));
}

bool ModelConfig::has_dense_layers() const {
  for (std::int64_t layer = 0; layer < num_layers; ++layer) {
    if (!has_experts(layer)) return true;
  }
  return false;
}

std::int64_t ModelConfig::ffn_size() const {
  if (ffn_hidden_size > 0) return ffn_hidden_size;
  return gated ? std::max<std::int64_t>(64, 8 * hidden_size / (3 * 64) * 64) : 4 * hidden_size;
}

double ModelConfig::mup_width() const {
  if (!mup.use_mup || mup.base_hidden_size == 0) return 1;
  return static_cast<double>(hidden_size) / static_cast<double>(mup.base_hidden_size);
}

double ModelConfig::embedding_factor() const {
  return mup.use_mup ? embedding_multiplier * mup.embedding_mult : embedding_multiplier;
}

double ModelConfig::logit_factor() const {
  return mup.use_mup ? logit_scale * mup.output_mult / mup_width() : logit_scale;
}

double ModelConfig::attention_scale() const {
  if (softmax_scale > 0) return softmax_scale;
  const auto head = static_cast<double>(head_size());
  double scale = 1.0 / std::sqrt(head);
  if (mup.use_mup) {
    const auto base = static_cast<double>(std::max<std::int64_t>(mup.base_head_dim, 1));
    scale = std::pow(base, mup.attn_scale_power - 0.5) / std::pow(head, mup.attn_scale_power);
  }
  return multi_latent_attention ? scale * latent_scale_factor(rope_scaling) : scale;
}

bool ModelConfig::windowed(std::int64_t layer) const {
  if (window_size <= 0) return false;
  layer = std::min(layer, num_layers - 1);
  if (window_layers.empty()) return true;
  if (window_layers.size() == 1 && num_layers != 1) return (layer + 1) % window_layers[0] != 0;
  return window_layers[static_cast<std::size_t>(layer)] != 0;
}

bool ModelConfig::chunked(std::int64_t layer) const {
  if (window_size <= 0 || (window_layers.size() <= 1 && num_layers != 1)) return false;
  layer = std::min(layer, num_layers - 1);
  return !window_layers.empty() && window_layers[static_cast<std::size_t>(layer)] == 2;
}

bool ModelConfig::has_indexer(std::int64_t layer) const {
  if (indexer.topk == 0) return false;
  if (indexer.shared_layers.empty()) return true;
  return indexer.shared_layers[static_cast<std::size_t>(std::min(layer, num_layers - 1))] == 0;
}

std::int64_t ModelConfig::longest_sequence() const {
  if (position_embedding_type == PositionKind::kLearned) return max_position_embeddings;
  return indexer.topk;
}

const char* ModelConfig::longest_sequence_reason() const {
  return position_embedding_type == PositionKind::kLearned
             ? "learned positions of the model (max_position_embeddings)"
             : "tokens beyond which the model attends sparsely (index_topk), which is not "
               "supported";
}

bool ModelConfig::rotates(std::int64_t layer) const {
  if (position_embedding_type != PositionKind::kRope) return false;
  layer = std::min(layer, num_layers - 1);
  if (no_rope_layers.empty()) return true;
  if (no_rope_layers.size() == 1 && num_layers != 1) return (layer + 1) % no_rope_layers[0] != 0;
  return no_rope_layers[static_cast<std::size_t>(layer)] == 0;
}

bool ModelConfig::scales_queries(std::int64_t layer) const {
  return rope_scaling.queries.beta != 0 && (rope_scaling.queries.all_layers || !rotates(layer));
}

}  // namespace bev
