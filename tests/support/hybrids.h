// Small models with recurrent layers.
#pragma once

#include "tests/support/layouts.h"

namespace bev::test {

// Mamba-2 alone: one group of B and C for all heads, a norm of the whole width.
inline ModelConfig tiny_mamba() {
  ModelConfig model = tiny_llama();
  model.family = "mamba2";
  model.hybrid_layer_pattern = "MMMM";
  model.position_embedding_type = PositionKind::kNone;
  model.mamba.num_heads = 8;
  model.mamba.head_dim = 5;
  model.mamba.state_dim = 7;
  model.mamba.num_groups = 1;
  model.mamba.norm = RecurrentNorm::kWidth;
  return model;
}

// Layers of one part: Mamba-2 with groups, experts, attention, an MLP.
inline ModelConfig tiny_nemotron_h() {
  ModelConfig model = tiny_llama();
  model.family = "nemotron_h";
  model.num_layers = 6;
  model.num_attention_heads = 8;
  model.kv_channels = 4;
  model.hybrid_layer_pattern = "ME*-ME";
  model.position_embedding_type = PositionKind::kNone;
  model.gated = false;
  model.activation = Activation::kSquaredRelu;
  model.mamba.num_heads = 8;
  model.mamba.head_dim = 3;
  model.mamba.state_dim = 6;
  model.mamba.num_groups = 4;
  model.mamba.in_bias = model.mamba.out_bias = true;
  model.mamba.dt_min = 0.01;
  model.moe.num_experts = 4;
  model.moe.topk = 2;
  model.moe.ffn_hidden_size = 12;
  model.moe.shared_expert_size = 16;
  model.moe.score_function = RouterScore::kSigmoid;
  model.moe.expert_bias = true;
  model.moe_training.load_balancing = {"seq_aux_loss"};
  model.moe_training.aux_loss_coeff = {0.2};
  return model;
}

// Mamba-2 in parallel with attention, multipliers; two groups, whose norm comes before the gate.
inline ModelConfig tiny_falcon_h1() {
  ModelConfig model = tiny_llama();
  model.family = "falcon_h1";
  model.num_attention_heads = 8;
  model.hybrid_layer_pattern = "pppp";
  model.mlp_gate_multiplier = 0.7;
  model.mlp_multiplier = 1.3;
  model.mamba.num_heads = 8;
  model.mamba.head_dim = 4;
  model.mamba.state_dim = 5;
  model.mamba.num_groups = 2;
  model.mamba.norm_before_gate = true;
  model.mamba.in_multiplier = 1.2;
  model.mamba.out_multiplier = 0.8;
  model.mamba.part_multipliers = {0.9, 1.1, 0.8, 1.2, 0.7};
  model.mamba.attention_in_multiplier = 1.4;
  model.mamba.attention_out_multiplier = 0.6;
  return model;
}

// Mamba-2 or attention in a layer, then experts and a shared one; no gated norm at all.
inline ModelConfig tiny_granite_h() {
  ModelConfig model = tiny_llama();
  model.family = "granitemoehybrid";
  model.num_attention_heads = 8;
  model.hybrid_layer_pattern = "mmam";
  model.residual_multiplier = 0.6;
  model.mamba.num_heads = 8;
  model.mamba.head_dim = 4;
  model.mamba.state_dim = 5;
  model.mamba.num_groups = 1;
  model.mamba.conv_kernel = 3;
  model.mamba.conv_bias = false;
  model.mamba.norm = RecurrentNorm::kNone;
  model.moe.num_experts = 4;
  model.moe.topk = 2;
  model.moe.ffn_hidden_size = 8;
  model.moe.shared_expert_size = 12;
  return model;
}

}  // namespace bev::test
