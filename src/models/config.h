// Model configuration: architecture and shape, independent of layout, precision and training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/encoder_config.h"
#include "models/lora_config.h"
#include "models/moe_config.h"
#include "nn/qk_norm.h"
#include "tensor/activation_kind.h"
#include "tensor/attention_rule.h"

namespace bev {

class FieldList;
struct Architecture;

// Limits of the kernels and of the Philox counters.
inline constexpr std::int64_t kHeadSizeLimit = 256;
inline constexpr std::int64_t kLatentRowLimit = 1024;  // MLA: latent and rotated key of a token
inline constexpr std::int64_t kLayerLimit = 4095;
inline constexpr std::int64_t kHeadLimit = 65535;

enum class PositionKind : std::uint8_t { kLearned, kRope, kNone };
enum class NormKind : std::uint8_t { kLayerNorm, kRmsNorm, kLayerNormWithoutBias };
// Norms of a layer: before attention and MLP; after each (OLMo 2); both (Gemma 2); one norm that
// attention and MLP of a parallel block share (Phi); or after each residual sum (BERT).
enum class NormPlacement : std::uint8_t { kPre, kPost, kPreAndPost, kShared, kResidual };
enum class RopeScalingKind : std::uint8_t {
  kDefault,
  kLinear,
  kDynamic,
  kLlama3,
  kYarn,
  kLongRope
};

// Queries times 1 + beta * log(1 + floor((position + shift) / period)). beta 0: none.
struct QueryScaling {
  double beta = 0;
  std::int64_t period = 8192;
  std::int64_t shift = 0;
  bool all_layers = false;  // else in layers without RoPE
};

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kDefault;
  double factor = 1.0;
  std::int64_t original_max_positions = 0;  // 0: max_position_embeddings
  double low_freq_factor = 1.0;             // llama3
  double high_freq_factor = 4.0;            // llama3
  double beta_fast = 32.0;                  // yarn
  double beta_slow = 1.0;                   // yarn
  double mscale = 0.0;                      // yarn; 0: not given
  double mscale_all_dim = 0.0;              // yarn; 0: not given
  double attention_factor = 0.0;            // yarn, longrope; 0: from the factor
  bool truncate = true;                     // yarn: round the correction range to whole dims
  std::vector<double> short_factor;         // longrope
  std::vector<double> long_factor;          // longrope
  QueryScaling queries;                     // with any kind

  void fields(FieldList& list);
};

// Sparse attention of DeepSeek-V3.2: an indexer chooses `topk` keys for each query. Sequences up to
// topk tokens are computed, where it chooses all; its weights are kept and do not train.
struct IndexerConfig {
  std::int64_t topk = 0;  // 0: none
  std::int64_t heads = 64, head_size = 128;
  // Layers with the choice of an earlier one. Per layer 1: shared, 0: with an indexer; empty: none.
  std::vector<std::int64_t> shared_layers;
};

// Maximal update parametrisation (MuP): the best learning rate of a small width is that of a large
// one. m = hidden_size / base_hidden_size divides the variance of initial hidden matrices, their
// learning rate and epsilon under Adam, and the logits; attention scores are q k / d.
struct MupConfig {
  bool use_mup = false;
  std::int64_t base_hidden_size = 0;  // 0: hidden_size
  double embedding_mult = 1, output_mult = 1;
  std::int64_t base_head_dim = 0;  // head size at which scores are as without MuP; 0: 1
  double attn_scale_power = 1;
};

struct ModelConfig {
  std::string family = "gpt2";  // a name of the model registry: gpt2, llama, mistral, ...
  const Architecture* architecture =
      nullptr;  // defined by the application (models/model.h); null: the decoder
  // Low-rank adapters. With them the rest of the model is frozen.
  LoraConfig lora = {};
  // Further adapters of a model that does not train, with numbers from 1; AdapterRows chooses.
  std::vector<LoraConfig> more_loras = {};

  // Shape.
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t ffn_hidden_size = 0;  // 0: 4 hidden, or Megatron's 8/3 rule if gated
  std::int64_t num_attention_heads = 0;
  std::int64_t num_query_groups = 0;  // GQA; 0: one per head
  std::int64_t kv_channels = 0;       // head size; 0: hidden / heads
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 0;  // 0: the training sequence length

  // Positions.
  PositionKind position_embedding_type = PositionKind::kLearned;
  double rotary_base = 10000.0;
  double rotary_base_local = 0.0;  // base of windowed layers, never scaled; 0: rotary_base
  double rotary_percent = 1.0;
  bool rotary_interleaved = false;
  RopeScaling rope_scaling;
  // Layers without RoPE. Per layer 1: without, 0: with; or one N: every N-th layer; empty: none.
  std::vector<std::int64_t> no_rope_layers;

  // Attention.
  bool qk_layernorm = false;
  QkNorm qk_norm_kind = QkNorm::kHead;
  double softmax_scale = 0.0;           // 0: 1/sqrt(head size)
  bool scale_by_inverse_layer = false;  // gpt2: also divided by the layer index + 1
  double attn_logit_softcapping = 0.0;  // 0: none
  // Sliding window: earlier keys a query sees, not counting its own, and as many later ones if the
  // model is not causal; 0: all.
  std::int64_t window_size = 0;
  // Per layer 1: windowed, 0: full, 2: windows do not slide, but are chunks of window_size + 1
  // tokens; or one N: every N-th layer is full; empty: all are windowed.
  std::vector<std::int64_t> window_layers;
  bool causal = true;
  // What joins the softmax's sum: nothing, exp(0), or exp of a learned logit of each head.
  SoftmaxSink softmax_type = SoftmaxSink::kNone;

  // Multi-head latent attention (MLA), with Megatron's sizes.
  bool multi_latent_attention = false;
  std::int64_t q_lora_rank = 0;  // latent of the queries; 0: none
  std::int64_t kv_lora_rank = 32;
  std::int64_t qk_head_dim = 128;         // dims of a q or k head without rotation
  std::int64_t qk_pos_emb_head_dim = 64;  // rotated dims of a q or k head
  std::int64_t v_head_dim = 128;
  double latent_norm_epsilon = 0.0;  // 0: norm_epsilon
  IndexerConfig indexer;

  // Block.
  NormKind normalization = NormKind::kLayerNorm;
  double norm_epsilon = 1e-5;
  bool apply_layernorm_1p = false;  // the norm multiplies by 1 + weight
  NormPlacement norm_placement = NormPlacement::kPre;
  bool parallel_residual = false;  // gpt_neox: attention and MLP read the same input
  double residual_multiplier = 1;  // of what attention and MLP add to the residual stream
  Activation activation = Activation::kGelu;
  bool gated = false;              // act(gate) * up
  double activation_clamp = 0.0;   // gated: limit of gate and of |up|; 0: none
  double glu_linear_offset = 0.0;  // gated: added to up
  bool add_bias_linear = true;     // biases of all linears
  bool add_qkv_bias = false;       // of qkv only (if add_bias_linear is off)
  bool add_proj_bias = false;      // of the attention output only
  bool add_mlp_bias = false;       // of the MLP only

  // Embedding and output layer.
  bool untie_embeddings_and_output_weights = false;
  double embedding_multiplier = 1.0;
  // Vocabulary row that gets no gradient from lookups (padding_idx of Hugging Face); -1: none.
  std::int64_t padding_row = -1;
  bool add_head_bias = false;  // of the output layer
  double logit_scale = 1.0;
  double final_logit_softcapping = 0.0;  // 0: none
  std::int64_t mtp_num_layers = 0;       // MTP (multi-token prediction) modules
  // Sequence classification: a head of so many outputs takes the place of the output layer (1: a
  // reward model); 0: none. A sequence's scores are those of its last token that is not pad_token.
  std::int64_t num_labels = 0;
  std::int64_t pad_token = -1;  // -1: none
  EncoderConfig encoder;

  MoeConfig moe;

  // Training-time choices that belong to the model.
  MoeTraining moe_training;
  double hidden_dropout = 0.0;
  double attention_dropout = 0.0;
  double init_method_std = 0.02;
  double embedding_init_method_std = 0;     // 0: init_method_std
  bool init_method_xavier_uniform = false;  // of hidden matrices
  MupConfig mup;
  double mtp_loss_scaling_factor = 0.1;  // loss weight of all MTP modules together

  void fields(FieldList& list);

  // Head size of q and k.
  std::int64_t head_size() const {
    if (multi_latent_attention) return qk_head_dim + qk_pos_emb_head_dim;
    return kv_channels ? kv_channels : hidden_size / num_attention_heads;
  }
  std::int64_t v_head_size() const { return multi_latent_attention ? v_head_dim : head_size(); }
  std::int64_t kv_heads() const {
    return num_query_groups ? num_query_groups : num_attention_heads;
  }
  std::int64_t ffn_size() const;
  bool has_experts(std::int64_t layer) const;  // layers after the last (MTP) are like the last
  bool has_dense_layers() const;               // layers without experts
  // FFN size of one expert.
  std::int64_t expert_ffn_size() const {
    return moe.ffn_hidden_size > 0 ? moe.ffn_hidden_size : ffn_size();
  }
  double mup_width() const;         // m; 1 without MuP
  double embedding_factor() const;  // of the looked up embeddings
  double logit_factor() const;      // of the logits
  double attention_scale() const;   // for layer 0; see scale_by_inverse_layer
  // Layers after the last (MTP) are like the last.
  bool windowed(std::int64_t layer) const;  // also in chunks
  bool chunked(std::int64_t layer) const;
  bool rotates(std::int64_t layer) const;  // with RoPE
  bool scales_queries(std::int64_t layer) const;
  bool has_indexer(std::int64_t layer) const;
  // Longest sequence that the model can compute (0: any), and what sets it, for messages.
  std::int64_t longest_sequence() const;
  const char* longest_sequence_reason() const;
  // With MLA: biases of the down-projections to latents, which add_bias_linear does not add.
  bool has_qkv_bias() const { return (add_bias_linear && !multi_latent_attention) || add_qkv_bias; }
  bool has_proj_bias() const { return add_bias_linear || add_proj_bias; }
  bool has_mlp_bias() const { return add_bias_linear || add_mlp_bias; }
  // Layers that end with a norm need none after the last.
  bool has_final_norm() const { return norm_placement != NormPlacement::kResidual; }
  bool has_output_layer() const {
    return encoder.encoder ? encoder.language_head : num_labels == 0;
  }

  // All inconsistencies within the configuration, each with the values and the fix.
  std::vector<std::string> problems() const;
};

}  // namespace bev
