// Consistency checks of a model configuration.
#include <algorithm>

#include "base/problems.h"
#include "base/text.h"
#include "models/config.h"
#include "models/rope.h"

namespace bev {

namespace {

void check_heads(const ModelConfig& model, std::vector<std::string>& out) {
  if (model.kv_channels == 0 && model.hidden_size % model.num_attention_heads != 0) {
    out.push_back(concat("--num-attention-heads: ", model.num_attention_heads,
                         " does not divide --hidden-size ", model.hidden_size,
                         "; change one, or give the head size with --kv-channels"));
  }
  std::int64_t groups = model.kv_heads();
  if (groups < 1 || model.num_attention_heads % groups != 0) {
    out.push_back(concat("--num-query-groups: ", groups, " does not divide --num-attention-heads ",
                         model.num_attention_heads, "; use ",
                         divisors_text(model.num_attention_heads)));
  }
  if (model.head_size() > kHeadSizeLimit) {
    out.push_back(concat("--kv-channels: a head of ", model.head_size(), " is too large; at most ",
                         kHeadSizeLimit, ", so use more heads or give the head size"));
  }
}

void check_latent(const ModelConfig& model, std::vector<std::string>& out) {
  auto need = [&](const char* flag, std::int64_t value) {
    if (value < 1) {
      out.push_back(concat(flag, ": is ", value, "; latent attention needs a number >= 1"));
    }
  };
  need("--kv-lora-rank", model.kv_lora_rank);
  need("--qk-head-dim", model.qk_head_dim);
  need("--qk-pos-emb-head-dim", model.qk_pos_emb_head_dim);
  need("--v-head-dim", model.v_head_dim);
  if (model.kv_heads() != model.num_attention_heads) {
    out.push_back(concat("--num-query-groups: ", model.kv_heads(),
                         "; latent attention has as many groups as --num-attention-heads ",
                         model.num_attention_heads, ", so leave it away"));
  }
  if (model.position_embedding_type != PositionKind::kRope) {
    out.push_back("--position-embedding-type: latent attention needs rope");
  }
  if (std::max(model.head_size(), model.v_head_dim) > kHeadSizeLimit) {
    out.push_back(concat("--qk-head-dim: heads of ", model.qk_head_dim, " + ",
                         model.qk_pos_emb_head_dim, " and ", model.v_head_dim,
                         " are too large; at most ", kHeadSizeLimit));
  }
  if (model.kv_lora_rank + model.qk_pos_emb_head_dim > kLatentRowLimit) {
    out.push_back(concat("--kv-lora-rank: a latent of ", model.kv_lora_rank,
                         " and a rotated key of ", model.qk_pos_emb_head_dim,
                         " are too large; at most ", kLatentRowLimit, " together"));
  }
}

void check_gate(const ModelConfig& model, std::vector<std::string>& out) {
  if (model.activation == Activation::kXielu && (model.gated || model.moe.any())) {
    out.push_back(
        "--activation: xielu is for a dense MLP without a gate; leave --gated and "
        "--num-experts away");
  }
  if (model.gated) return;
  if (model.activation_clamp != 0 || model.glu_linear_offset != 0) {
    out.push_back(
        "--activation-func-clamp-value, --glu-linear-offset: need a gated MLP; give --gated");
  }
}

void check_rope(const ModelConfig& model, std::vector<std::string>& out) {
  std::int64_t dims = rotary_dims(model);
  if (model.multi_latent_attention) {
    if (dims % 2 != 0) {
      out.push_back(concat("--qk-pos-emb-head-dim: ", dims, " is odd; rope turns pairs of dims"));
    }
  } else if (dims < 2 || dims % 2 != 0) {
    out.push_back(concat("--rotary-percent: ", model.rotary_percent, " of a head of ",
                         model.head_size(), " turns ", dims,
                         " dims; rope needs an even number, so change it or --kv-channels"));
  }
  const RopeScaling& scaling = model.rope_scaling;
  if (scaling.kind != RopeScalingKind::kDefault && scaling.factor < 1.0) {
    out.push_back(concat("--rope-scaling-factor: ", scaling.factor, " shortens; it must be >= 1"));
  }
  if (scaling.kind == RopeScalingKind::kLlama3 &&
      scaling.high_freq_factor <= scaling.low_freq_factor) {
    out.push_back(concat("--rope-high-freq-factor: ", scaling.high_freq_factor,
                         " is not above --rope-low-freq-factor ", scaling.low_freq_factor));
  }
  if (scaling.kind != RopeScalingKind::kLongRope) return;
  auto check_factors = [&](const char* flag, const std::vector<double>& factors) {
    auto count = static_cast<std::int64_t>(factors.size());
    if (count != dims / 2) {
      out.push_back(concat(flag, ": has ", count, " numbers; longrope needs ", dims / 2,
                           ", one for each rotated pair"));
    }
  };
  check_factors("--longrope-short-factor", scaling.short_factor);
  check_factors("--longrope-long-factor", scaling.long_factor);
}

void check_windows(const ModelConfig& model, std::vector<std::string>& out) {
  const auto& layers = model.window_layers;
  auto count = static_cast<std::int64_t>(layers.size());
  if (std::ranges::find(layers, 2) != layers.end() && !model.causal) {
    out.push_back("--window-attn-skip-freq: 2 (chunks) is for causal models; drop --no-causal");
  }
  if (count == 0) return;
  bool frequency = count == 1 && model.num_layers != 1;
  if (frequency ? layers[0] < 1 : std::ranges::any_of(layers, [](auto one) { return one > 2; })) {
    out.push_back(
        concat("--window-attn-skip-freq: ", layers[0],
               " does not do; give one N >= 1, or a 1 (windowed), 2 (chunks) or 0 for each "
               "layer"));
  } else if (!frequency && count != model.num_layers) {
    out.push_back(concat("--window-attn-skip-freq: lists ", count, " layers, --num-layers is ",
                         model.num_layers));
  }
  bool any = frequency
                 ? layers[0] > 1
                 : std::ranges::find_if(layers, [](auto one) { return one > 0; }) != layers.end();
  if (any && model.window_size == 0) {
    out.push_back("--window-attn-skip-freq: there is no window; give --window-size too");
  }
}

void check_positions(const ModelConfig& model, std::vector<std::string>& out) {
  const auto& layers = model.no_rope_layers;
  auto count = static_cast<std::int64_t>(layers.size());
  if (count > 0 && model.multi_latent_attention) {
    out.push_back("--no-rope-freq: latent attention rotates in all layers; leave one away");
  }
  if (count > 0 && model.position_embedding_type != PositionKind::kRope) {
    out.push_back("--no-rope-freq: needs --position-embedding-type rope");
  }
  bool frequency = count == 1 && model.num_layers != 1;
  if (frequency ? layers[0] < 1 : std::ranges::any_of(layers, [](auto one) { return one > 1; })) {
    out.push_back(concat("--no-rope-freq: ", layers[0],
                         " does not do; give one N >= 1, or a 1 (without) or 0 for each layer"));
  } else if (count > 0 && !frequency && count != model.num_layers) {
    out.push_back(
        concat("--no-rope-freq: lists ", count, " layers, --num-layers is ", model.num_layers));
  }
  if (model.rope_scaling.queries.beta == 0) return;
  if (model.multi_latent_attention || model.head_size() % 2 != 0 ||
      model.position_embedding_type != PositionKind::kRope) {
    out.push_back(concat("--query-scaling-beta: heads of ", model.head_size(),
                         "; needs rope, an even head size, and no latent attention"));
  }
}

void check_indexer(const ModelConfig& model, std::vector<std::string>& out) {
  if (model.indexer.topk == 0) return;
  if (!model.multi_latent_attention || model.q_lora_rank == 0) {
    out.push_back(
        "--dsa-indexer-topk: the indexer reads the latent of the queries; give "
        "--multi-latent-attention and --q-lora-rank");
  }
  const auto count = static_cast<std::int64_t>(model.indexer.shared_layers.size());
  if (count != 0 && count != model.num_layers) {
    out.push_back(concat("--dsa-indexer-shared-layers: lists ", count, " layers, --num-layers is ",
                         model.num_layers));
  }
}

void check_norms(const ModelConfig& model, std::vector<std::string>& out) {
  if (model.norm_placement == NormPlacement::kShared && !model.parallel_residual) {
    out.push_back("--norm-placement: shared is for --parallel-residual; give it too");
  }
  const bool after = model.norm_placement == NormPlacement::kPost ||
                     model.norm_placement == NormPlacement::kResidual;
  if (after && model.parallel_residual) {
    out.push_back(
        "--norm-placement: post and residual are not for --parallel-residual; leave one away");
  }
  if (model.qk_norm_kind == QkNorm::kHead) return;
  if (!model.qk_layernorm || model.multi_latent_attention) {
    out.push_back(
        "--qk-norm-type: needs --qk-layernorm and attention without latents; give it, or leave "
        "this away");
  }
}

void check_encoder(const ModelConfig& model, std::vector<std::string>& out) {
  for (std::string& problem : model.encoder.problems()) out.push_back(std::move(problem));
  if (!model.encoder.encoder) return;
  if (model.causal) out.push_back("--encoder: sees both sides; give --no-causal too");
  if (model.mtp_num_layers > 0) {
    out.push_back("--mtp-num-layers: predicts next tokens, and encoders do not; leave one away");
  }
  if (model.has_output_layer() && model.num_labels > 0) {
    out.push_back(concat("--num-labels: ", model.num_labels,
                         " outputs take the place of the output layer; give --no-language-head and "
                         "--label-kind"));
  }
  if (model.lora.used() && model.encoder.labels != LabelKind::kNone) {
    out.push_back(
        "--lora-rank: the head for labels would not train with the adapter; leave one away");
  }
  if ((model.encoder.labels != LabelKind::kNone) != (model.num_labels > 0)) {
    out.push_back(concat("--label-kind: needs --num-labels, which is ", model.num_labels,
                         "; give both or none"));
  }
}

}  // namespace

std::vector<std::string> ModelConfig::problems() const {
  std::vector<std::string> out;
  auto need = [&](const char* flag, std::int64_t value) {
    if (value < 1) out.push_back(concat(flag, ": is ", value, "; give a number >= 1"));
  };
  need("--num-layers", num_layers);
  need("--hidden-size", hidden_size);
  need("--num-attention-heads", num_attention_heads);
  if (vocab_size < 1) {
    out.push_back(concat("--vocab-size: is ", vocab_size,
                         "; give a number >= 1, or --tokenizer, which has one"));
  }
  if (position_embedding_type == PositionKind::kLearned) {
    need("--max-position-embeddings", max_position_embeddings);
  }
  auto limit = [&](const char* flag, std::int64_t value, std::int64_t most) {
    if (value > most) out.push_back(concat(flag, ": ", value, " is too many; at most ", most));
  };
  limit("--num-layers", num_layers + mtp_num_layers, kLayerLimit);
  if (num_labels > 0 && mtp_num_layers > 0) {
    out.push_back(
        "--mtp-num-layers: predicts tokens, which a model with --num-labels cannot; "
        "leave one away");
  }
  if (add_head_bias && (!has_output_layer() || mtp_num_layers > 0)) {
    out.push_back(
        "--add-head-bias: is of an output layer alone; leave it away with --num-labels, "
        "--no-language-head and --mtp-num-layers");
  }
  if (mtp_num_layers > 0 && (position_embedding_type == PositionKind::kLearned || !causal)) {
    out.push_back(
        "--mtp-num-layers: needs a causal model without learned positions; give "
        "--position-embedding-type rope");
  }
  limit("--num-attention-heads", num_attention_heads, kHeadLimit);
  if (hidden_size > 0 && num_attention_heads > 0) {
    if (multi_latent_attention) {
      check_latent(*this, out);
    } else {
      check_heads(*this, out);
    }
    if (position_embedding_type == PositionKind::kRope) check_rope(*this, out);
  }
  check_gate(*this, out);
  check_norms(*this, out);
  check_indexer(*this, out);
  check_encoder(*this, out);
  if (num_layers > 0) {
    check_windows(*this, out);
    if (num_attention_heads > 0) check_positions(*this, out);
    for (std::string& problem : moe.problems(num_layers)) out.push_back(std::move(problem));
  }
  for (std::string& problem : moe_training.problems(moe)) out.push_back(std::move(problem));
  return out;
}

}  // namespace bev
