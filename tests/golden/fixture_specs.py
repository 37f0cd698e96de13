"""The table of golden models: one small, awkwardly shaped configuration per fixture.

contrasts: overrides that a wrong reader might end up with. The maker checks that each one moves the
logits, so that a test against the fixture can see the mistake. A dict value is merged, not replaced.
"""

from dataclasses import dataclass, field


@dataclass
class Spec:
    name: str
    model_type: str
    config: dict
    rows: int = 2
    length: int = 16
    prompts: tuple = (1, 4, 9)  # prompt lengths
    contrasts: dict = field(default_factory=dict)
    ragged: tuple = ()  # row lengths
    v4: bool = False
    ignored_row: bool = False  # one row has no valid label at all
    flat: tuple = ()  # endings of weights that get no gradient
    gain: float = 1.0  # scale of the projections
    adamw: dict = field(default_factory=dict)


def rope(theta, **scaling):
    return {"rope_theta": theta, "rope_type": "default", **scaling}


LLAMA = dict(vocab_size=97, hidden_size=30, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
             head_dim=8, intermediate_size=44, max_position_embeddings=128, rms_norm_eps=1e-5,
             rope_parameters=rope(500.0))
LLAMA_SCALED = LLAMA | dict(num_hidden_layers=2, head_dim=14)
GPT2 = dict(vocab_size=211, n_embd=28, n_head=4, n_layer=2, n_positions=48, bos_token_id=0, eos_token_id=0)
PHI3 = dict(vocab_size=101, hidden_size=36, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
            intermediate_size=50, max_position_embeddings=64, original_max_position_embeddings=64,
            rms_norm_eps=1e-5, pad_token_id=None, bos_token_id=1, eos_token_id=2)
NEOX = dict(vocab_size=113, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=70,
            max_position_embeddings=64, bos_token_id=0, eos_token_id=2)
# 12 rotated dims, so 6 pairs.
LONGROPE_HEAD = dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=1, intermediate_size=42)
LONGROPE = dict(rope_type="longrope", rope_theta=100.0, partial_rotary_factor=0.75,
                short_factor=[1.0, 1.05, 1.1, 1.3, 1.6, 2.0], long_factor=[1.2, 1.9, 2.5, 3.5, 5.0, 7.5])

NO_SCALING = {"rope_parameters": {"rope_type": "default"}}
# Adam hardly sees a clip that always acts or never does, so some fixtures cross the limit in their ten steps.
GENTLE = dict(lr=1e-3, beta2=0.999, eps=1e-6, weight_decay=0.2, clip_grad=30.0)

SPECS = [
    Spec("gpt2", "gpt2", GPT2, rows=3, length=17, ragged=(5, 21, 12, 2), adamw=dict(clip_grad=4.0),
         contrasts={"gelu": {"activation_function": "gelu"}}),
    Spec("gpt2_gelu_inner", "gpt2",
         GPT2 | dict(vocab_size=131, n_embd=30, n_head=5, n_layer=3, n_inner=50, activation_function="gelu",
                     scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True, layer_norm_epsilon=1e-3),
         length=13, adamw=GENTLE,
         contrasts={"tanh gelu": {"activation_function": "gelu_new"},
                    "no layer scale": {"scale_attn_by_inverse_layer_idx": False},
                    "eps": {"layer_norm_epsilon": 1e-5}}),
    Spec("gpt2_relu_untied", "gpt2",
         GPT2 | dict(vocab_size=89, n_embd=27, n_head=3, n_layer=2, n_inner=45, activation_function="relu",
                     scale_attn_weights=False, tie_word_embeddings=False),
         length=11, gain=0.8,
         contrasts={"gelu": {"activation_function": "gelu"}, "scaled": {"scale_attn_weights": True}}),

    Spec("llama_gqa", "llama", LLAMA, rows=3, length=19, ignored_row=True,
         contrasts={"theta": {"rope_parameters": {"rope_theta": 10000.0}}, "eps": {"rms_norm_eps": 1e-2}}),
    Spec("llama_tied_bias", "llama",
         LLAMA | dict(vocab_size=151, num_hidden_layers=2, num_key_value_heads=3, head_dim=10, intermediate_size=52,
                      attention_bias=True, mlp_bias=True, tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh"),
         length=12, adamw=GENTLE, contrasts={"silu": {"hidden_act": "silu"}}),
    Spec("llama_rope_linear", "llama", LLAMA_SCALED | dict(
        rope_parameters=rope(50.0, rope_type="linear", factor=2.5)),
         length=18, contrasts={"unscaled": NO_SCALING}),
    # Longer than max_position_embeddings, which is when this one acts.
    Spec("llama_rope_dynamic", "llama", LLAMA_SCALED | dict(
        max_position_embeddings=14, rope_parameters=rope(50.0, rope_type="dynamic", factor=3.0)),
         length=22, prompts=(3, 6, 15), adamw=dict(clip_grad=5.0), contrasts={"unscaled": NO_SCALING}),
    # Wavelengths 6.3, 12 (short), 23, 45 (between), 88 and longer (long).
    Spec("llama_rope_llama3", "llama", LLAMA_SCALED | dict(
        rope_parameters=rope(100.0, rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=60)),
         length=21, v4=True, adamw=GENTLE,
         contrasts={"unscaled": NO_SCALING, "linear": {"rope_parameters": {"rope_type": "linear"}},
                    "low": {"rope_parameters": {"low_freq_factor": 2.0}},
                    "high": {"rope_parameters": {"high_freq_factor": 2.5}}}),
    Spec("llama_rope_yarn", "llama", LLAMA_SCALED | dict(
        max_position_embeddings=64,
        rope_parameters=rope(12.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
         length=23, prompts=(2, 5, 18), v4=True,
         contrasts={"unscaled": NO_SCALING, "linear": {"rope_parameters": {"rope_type": "linear"}},
                    "attention factor": {"rope_parameters": {"attention_factor": 1.0}}}),
    Spec("llama_rope_yarn_mscale", "llama", LLAMA_SCALED | dict(
        max_position_embeddings=96,
        rope_parameters=rope(12.0, rope_type="yarn", factor=6.0, original_max_position_embeddings=16,
                             beta_fast=2.0, beta_slow=0.25, mscale=1.5, mscale_all_dim=0.5)),
         length=20, contrasts={"mscale": {"rope_parameters": {"mscale": 1.0, "mscale_all_dim": 1.0}},
                               "betas": {"rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0}}}),
    Spec("llama_rope_yarn_factor", "llama", LLAMA_SCALED | dict(
        max_position_embeddings=48,
        rope_parameters=rope(12.0, rope_type="yarn", factor=3.0, original_max_position_embeddings=16,
                             beta_fast=1.5, beta_slow=0.4, attention_factor=0.8, truncate=False)),
         length=19, contrasts={"truncate": {"rope_parameters": {"truncate": True}},
                               "attention factor": {"rope_parameters": {"attention_factor": 1.0}}}),

    Spec("mistral_window_mqa", "mistral",
         LLAMA | dict(num_hidden_layers=2, num_key_value_heads=1, head_dim=12, sliding_window=5, rms_norm_eps=1e-6),
         length=19, ragged=(3, 14, 7), contrasts={"window + 1": {"sliding_window": 6},
                                                  "window - 1": {"sliding_window": 4},
                                                  "no window": {"sliding_window": None}}),
    Spec("mistral_full", "mistral",
         LLAMA | dict(vocab_size=331, num_hidden_layers=1, num_attention_heads=5, num_key_value_heads=5, head_dim=None,
                      sliding_window=None, intermediate_size=58), rows=3, length=14, adamw=GENTLE,
         contrasts={"theta": {"rope_parameters": {"rope_theta": 10000.0}}}),

    Spec("qwen2_mixed_window", "qwen2",
         dict(vocab_size=103, hidden_size=36, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
              intermediate_size=38, max_position_embeddings=64, rms_norm_eps=1e-6, use_sliding_window=True,
              sliding_window=6, max_window_layers=1, rope_parameters=rope(1000.0)),
         length=20, contrasts={"all full": {"layer_types": ["full_attention"] * 3},
                               "all sliding": {"layer_types": ["sliding_attention"] * 3},
                               "other way round": {"layer_types": ["sliding_attention"] + ["full_attention"] * 2}}),
    Spec("qwen3_tied", "qwen3",
         dict(vocab_size=157, hidden_size=30, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
              head_dim=12, intermediate_size=50, max_position_embeddings=64, rms_norm_eps=1e-6,
              tie_word_embeddings=True, rope_parameters=rope(1e4)), length=15,
         contrasts={"theta": {"rope_parameters": {"rope_theta": 1e3}}, "eps": {"rms_norm_eps": 1e-2}}),

    Spec("mixtral", "mixtral",
         LLAMA | dict(num_hidden_layers=2, intermediate_size=26, num_local_experts=5, num_experts_per_tok=2,
                      sliding_window=6), length=17, ragged=(3, 14, 1), v4=True,
         contrasts={"top 3": {"num_experts_per_tok": 3}, "no window": {"sliding_window": None}}),
    # More experts than tokens.
    Spec("mixtral_many", "mixtral",
         LLAMA | dict(vocab_size=61, num_hidden_layers=1, intermediate_size=10, num_local_experts=23,
                      num_experts_per_tok=2, tie_word_embeddings=True), rows=1, length=9,
         contrasts={"top 3": {"num_experts_per_tok": 3}}),
    # Layers 1 and 3 of 4 have experts, less layer 3; each with a gated expert for all tokens.
    Spec("qwen2_moe", "qwen2_moe",
         dict(vocab_size=103, hidden_size=36, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2,
              intermediate_size=38, moe_intermediate_size=14, shared_expert_intermediate_size=22, num_experts=7,
              num_experts_per_tok=3, norm_topk_prob=False, decoder_sparse_step=2, mlp_only_layers=[3],
              max_position_embeddings=64, rms_norm_eps=1e-6, rope_parameters=rope(1000.0)),
         length=16, contrasts={"normalised": {"norm_topk_prob": True}, "top 2": {"num_experts_per_tok": 2}}),
    Spec("qwen3_moe", "qwen3_moe",
         dict(vocab_size=157, hidden_size=30, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
              head_dim=12, intermediate_size=50, moe_intermediate_size=18, num_experts=9, num_experts_per_tok=4,
              norm_topk_prob=True, mlp_only_layers=[1], max_position_embeddings=64, rms_norm_eps=1e-6,
              tie_word_embeddings=True, rope_parameters=rope(1e4)), length=15, adamw=GENTLE,
         contrasts={"not normalised": {"norm_topk_prob": False}, "top 3": {"num_experts_per_tok": 3}}),

    Spec("gemma2", "gemma2",
         dict(vocab_size=149, hidden_size=30, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
              head_dim=12, intermediate_size=50, max_position_embeddings=64, sliding_window=5,
              query_pre_attn_scalar=7, attn_logit_softcapping=2.5, final_logit_softcapping=6.0, pad_token_id=None,
              rope_parameters=rope(200.0)),
         length=18, adamw=dict(clip_grad=3.0),
         contrasts={"no attention cap": {"attn_logit_softcapping": None},
                    "no final cap": {"final_logit_softcapping": None},
                    "head_dim scale": {"query_pre_attn_scalar": 12},
                    "swapped": {"layer_types": ["full_attention", "sliding_attention"]}}),
    # Layers 0, 1 and 3 slide (pattern 3).
    Spec("gemma3", "gemma3_text",
         dict(vocab_size=127, hidden_size=24, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
              head_dim=10, intermediate_size=35, max_position_embeddings=64, sliding_window=5, sliding_window_pattern=3,
              query_pre_attn_scalar=5, pad_token_id=None,
              rope_parameters={"full_attention": rope(300.0, rope_type="linear", factor=4.0),
                               "sliding_attention": rope(20.0)}),
         length=18, ragged=(4, 16, 9), v4=True,
         contrasts={"global everywhere": {"rope_parameters": {"sliding_attention": rope(300.0)}},
                    "local everywhere": {"rope_parameters": {"full_attention": rope(20.0)}},
                    "unscaled": {"rope_parameters": {"full_attention": rope(300.0)}},
                    "pattern": {"layer_types": ["sliding_attention"] * 4}}),

    Spec("phi3", "phi3",
         PHI3 | dict(hidden_size=48, intermediate_size=38, num_attention_heads=6, sliding_window=7,
                     rope_parameters=rope(100.0, partial_rotary_factor=0.75)),
         length=17, adamw=dict(clip_grad=4.5),
         contrasts={"full rotary": {"rope_parameters": {"partial_rotary_factor": 1.0}},
                    "no window": {"sliding_window": None}}),
    Spec("phi3_longrope_short", "phi3",
         PHI3 | LONGROPE_HEAD | dict(max_position_embeddings=128, original_max_position_embeddings=32,
                                     rope_parameters=LONGROPE),
         length=16, v4=True, contrasts={"unscaled": NO_SCALING,
                                        "long": {"rope_parameters": {"short_factor": LONGROPE["long_factor"]}},
                                        "attention factor": {"rope_parameters": {"attention_factor": 1.0}}}),
    Spec("phi3_longrope_long", "phi3",
         PHI3 | LONGROPE_HEAD | dict(max_position_embeddings=55, original_max_position_embeddings=11,
                                     rope_parameters=LONGROPE),
         length=20, prompts=(4, 12, 16), v4=True, adamw=GENTLE,
         contrasts={"unscaled": NO_SCALING,
                    "short": {"rope_parameters": {"long_factor": LONGROPE["short_factor"]}},
                    "attention factor": {"rope_parameters": {"attention_factor": 1.0}}}),

    Spec("gpt_neox", "gpt_neox", NEOX | dict(rope_parameters=rope(100.0, partial_rotary_factor=0.25)),
         length=16, contrasts={"sequential": {"use_parallel_residual": False},
                               "tanh gelu": {"hidden_act": "gelu_new"},
                               "full rotary": {"rope_parameters": {"partial_rotary_factor": 1.0}}}),
    Spec("gpt_neox_sequential", "gpt_neox",
         NEOX | dict(vocab_size=179, hidden_size=30, num_attention_heads=3, use_parallel_residual=False,
                     hidden_act="gelu_new", attention_bias=False, tie_word_embeddings=True, layer_norm_eps=1e-6,
                     rope_parameters=rope(1e4, partial_rotary_factor=0.6)),
         length=15, adamw=GENTLE, contrasts={"parallel": {"use_parallel_residual": True},
                                             "erf gelu": {"hidden_act": "gelu"}}),

    # Latent attention in layers that are all dense. Values are smaller than keys here, larger in the next one.
    Spec("deepseek_v3_dense", "deepseek_v3",
         dict(vocab_size=109, hidden_size=34, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3,
              intermediate_size=46, max_position_embeddings=64, rms_norm_eps=1e-3, first_k_dense_replace=3,
              q_lora_rank=15, kv_lora_rank=11, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=14,
              attention_bias=True, pad_token_id=None,
              rope_parameters=rope(30.0, rope_type="yarn", factor=5.0, original_max_position_embeddings=12,
                                   beta_fast=3.0, beta_slow=0.5, mscale=0.7, mscale_all_dim=1.4)),
         rows=3, length=17, ragged=(4, 15, 9), adamw=GENTLE,
         contrasts={"halves": {"rope_interleave": False}, "eps": {"rms_norm_eps": 1e-6},
                    "mscale": {"rope_parameters": {"mscale": 1.4}},
                    "mscale of all dims": {"rope_parameters": {"mscale": 0.7, "mscale_all_dim": 0.7}}}),
    Spec("deepseek_v2_dense", "deepseek_v2",
         dict(vocab_size=127, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=38,
              max_position_embeddings=64, first_k_dense_replace=2, q_lora_rank=None, kv_lora_rank=10,
              qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=20, mlp_bias=True, pad_token_id=None,
              rope_parameters=rope(200.0)),
         length=15, adamw=GENTLE, contrasts={"theta": {"rope_parameters": {"rope_theta": 1e4}}}),
    # Groups of three experts, of which two are open; a shared expert; one dense layer.
    Spec("deepseek_v3", "deepseek_v3",
         dict(vocab_size=89, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
              intermediate_size=44, moe_intermediate_size=14, n_routed_experts=12, num_experts_per_tok=3, n_group=4,
              topk_group=2, n_shared_experts=2, routed_scaling_factor=1.7, first_k_dense_replace=1,
              max_position_embeddings=64, q_lora_rank=14, kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4,
              v_head_dim=10, pad_token_id=None, rope_parameters=rope(100.0)),
         length=16, contrasts={"one group": {"n_group": 1, "topk_group": 1}, "not normalised": {"norm_topk_prob": False},
                               "top 2": {"num_experts_per_tok": 2}, "scaling": {"routed_scaling_factor": 1.0}}),
    Spec("deepseek_v2", "deepseek_v2",
         dict(vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
              moe_intermediate_size=18, n_routed_experts=10, num_experts_per_tok=3, n_group=5, topk_group=2,
              topk_method="group_limited_greedy", n_shared_experts=1, routed_scaling_factor=1.3, first_k_dense_replace=1,
              max_position_embeddings=64, q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4,
              v_head_dim=8, pad_token_id=None, rope_parameters=rope(50.0)),
         length=14, adamw=GENTLE, contrasts={"greedy": {"topk_method": "greedy"},
                                             "two groups more": {"topk_group": 4}}),

    # Sinks, windows in every other layer, a limit that many gates reach; experts in whole blocks of MXFP4.
    Spec("gpt_oss", "gpt_oss",
         dict(vocab_size=83, hidden_size=32, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
              head_dim=10, intermediate_size=32, num_local_experts=5, num_experts_per_tok=2, sliding_window=4,
              max_position_embeddings=64, swiglu_limit=0.8, pad_token_id=None,
              rope_parameters=rope(60.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=16,
                                   beta_fast=3.0, beta_slow=0.5, truncate=False)),
         length=18, ragged=(3, 14, 9),
         contrasts={"limit": {"swiglu_limit": 7.0}, "top 3": {"num_experts_per_tok": 3},
                    "window": {"sliding_window": 5}, "all full": {"layer_types": ["full_attention"] * 3},
                    "truncate": {"rope_parameters": {"truncate": True}}}),

    # One expert a token, whose probability is divided by itself; keys of odd sizes, no latents of queries.
    Spec("deepseek_v3_one", "deepseek_v3",
         dict(vocab_size=61, hidden_size=22, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
              intermediate_size=15, moe_intermediate_size=9, n_routed_experts=7, num_experts_per_tok=1, n_group=1,
              topk_group=1, n_shared_experts=1, routed_scaling_factor=1.3, first_k_dense_replace=0,
              max_position_embeddings=64, q_lora_rank=None, kv_lora_rank=9, qk_nope_head_dim=7, qk_rope_head_dim=10,
              v_head_dim=5, rope_interleave=False, pad_token_id=None, rope_parameters=rope(40.0)),
         length=13, flat=(".mlp.gate.weight",), adamw=GENTLE,
         contrasts={"not normalised": {"norm_topk_prob": False}, "pairs": {"rope_interleave": True},
                    "scaling": {"routed_scaling_factor": 1.0}}),
]
