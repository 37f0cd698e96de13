#include "models/fp8_config.h"

#include <algorithm>

#include "base/fields.h"
#include "base/text.h"

namespace bev {

void Fp8Config::fields(FieldList& list) {
  list.section("fp8");
  list.add("fp8-format", fp8_format,
           {{"none", Fp8FormatChoice::kNone},
            {"e4m3", Fp8FormatChoice::kE4m3},
            {"hybrid", Fp8FormatChoice::kHybrid}},
           "linear layers in 8-bit floats: E4M3, or with E5M2 for gradients");
  list.add("fp8-recipe", fp8_recipe,
           {{"tensorwise", Fp8Scaling::kTensorwise},
            {"delayed", Fp8Scaling::kDelayed},
            {"blockwise", Fp8Scaling::kBlockwise}},
           "what scales follow from: the tensor itself, its steps before, or its blocks of 1 x 128 "
           "(weights: 128 x 128), which experts take too");
  list.add("fp8-margin", fp8_margin, "powers of two left between the largest number and the range")
      .min(0)
      .limit(64);
  list.add("fp8-interval", fp8_interval, "delayed: iterations between new scales")
      .min(1)
      .limit(1 << 30);
  list.add("fp8-amax-history-len", fp8_amax_history_len,
           "delayed: steps whose largest numbers are remembered")
      .min(1)
      .limit(1 << 16);
  list.add("fp8-amax-compute-algo", fp8_amax_compute_algo,
           {{"most_recent", AmaxChoice::kMostRecent}, {"max", AmaxChoice::kMax}},
           "delayed: which of them counts");
  list.add("fp8-wgrad", fp8_wgrad, "weight gradients too; otherwise in the model's precision");
  list.add("fp8-param-gather", fp8_param_gather,
           "ranks that share out the optimizer gather updated weights in 8 bits");
  list.add("first-last-layers-bf16", first_last_layers_bf16,
           "the first and the last layers stay in the model's precision");
  list.add("num-layers-at-start-in-bf16", num_layers_at_start_in_bf16,
           "--first-last-layers-bf16: how many at the start")
      .min(0)
      .limit(1 << 20);
  list.add("num-layers-at-end-in-bf16", num_layers_at_end_in_bf16,
           "--first-last-layers-bf16: how many at the end")
      .min(0)
      .limit(1 << 20);
  list.add("fp4-format", fp4_format,
           {{"none", Fp4FormatChoice::kNone}, {"e2m1", Fp4FormatChoice::kE2m1}},
           "linear layers with all factors rounded to 4-bit floats, emulated: for study");
  list.add("fp4-recipe", fp4_recipe, {{"nvfp4", Fp8Scaling::kNvfp4}, {"mxfp4", Fp8Scaling::kMxfp4}},
           "scales: E4M3 of 16 elements and one of the tensor, or powers of two of 32 elements");
}

Fp8Recipe Fp8Config::recipe(std::int64_t layer, std::int64_t layers) const {
  Fp8Recipe recipe;
  bool at_start = layer < num_layers_at_start_in_bf16;
  bool at_end = layer >= layers - num_layers_at_end_in_bf16;
  if (!used() || (first_last_layers_bf16 && (at_start || at_end))) return recipe;
  recipe.scaling = scaling();
  recipe.gradient_format =
      fp8_format == Fp8FormatChoice::kHybrid ? Fp8Format::kE5m2 : Fp8Format::kE4m3;
  recipe.margin = static_cast<int>(fp8_margin);
  recipe.wgrad = fp8_wgrad;
  return recipe;
}

std::vector<std::string> Fp8Config::problems(const ModelConfig& model, Dtype dtype, std::int64_t tp,
                                             std::int64_t etp) const {
  std::vector<std::string> out;
  if (!used()) return out;
  if (dtype == Dtype::kF64) out.push_back("--fp8-format: excludes --fp64; use --bf16");
  if (emulates_fp4() && fp8_format != Fp8FormatChoice::kNone) {
    out.push_back("--fp4-format: excludes --fp8-format; keep one");
  }
  if (emulates_fp4() && fp8_param_gather) {
    out.push_back("--fp8-param-gather: not with --fp4-format, which keeps no payloads");
  }
  if (first_last_layers_bf16 && scaling() == Fp8Scaling::kDelayed) {
    out.push_back(
        "--first-last-layers-bf16: not with --fp8-recipe delayed; use tensorwise or blockwise");
  }
  if (fp8_param_gather && scaling() == Fp8Scaling::kBlockwise) {
    out.push_back(
        "--fp8-param-gather: shards cut through blocks of --fp8-recipe blockwise; use tensorwise "
        "or "
        "delayed");
  }
  std::int64_t heads = model.num_attention_heads * model.head_size();
  auto check_multiple = [&](const char* flag, const char* what, std::int64_t size,
                            std::int64_t parts, std::int64_t multiple) {
    if (size % multiple == 0) return;
    out.push_back(concat(emulates_fp4() ? "--fp4-format: " : "--fp8-format: ", flag, " gives ",
                         what, " of ", size,
                         parts > 1 ? concat(" over ", parts, " tensor-parallel ranks") : "",
                         ", which must be a multiple of ", multiple,
                         scaling() == Fp8Scaling::kBlockwise
                             ? " with --fp8-recipe blockwise; change the size or take tensorwise"
                             : "; change the size or leave it off"));
  };
  auto check = [&](const char* flag, const char* what, std::int64_t size, std::int64_t parts) {
    check_multiple(flag, what, size, parts, alignment_of({.scaling = scaling()}, parts));
  };
  check("--hidden-size", "rows", model.hidden_size, 1);
  if (model.has_dense_layers()) check("--ffn-hidden-size", "an inner size", model.ffn_size(), tp);
  if (model.moe.any()) {
    check("--moe-shared-expert-intermediate-size", "an inner size", model.moe.shared_expert_size,
          tp);
    // Experts support blockwise scales only, in whole blocks.
    if (scaling() == Fp8Scaling::kBlockwise) {
      std::int64_t parts = etp > 0 ? etp : tp;
      check_multiple("--moe-ffn-hidden-size", "an inner size", model.expert_ffn_size(), parts,
                     parts * kScaleBlock);
      check_multiple("--hidden-size", "experts rows", model.hidden_size, 1, kScaleBlock);
    }
  }
  if (model.has_delta()) {
    const DeltaConfig& delta = model.delta;
    const std::int64_t values = delta.value_columns(), gates = 2 * delta.num_value_heads;
    check("--linear-value-head-dim", "values", values, tp);
    // As below: rows of different kinds in one block would be cut apart.
    if (scaling() == Fp8Scaling::kBlockwise && tp > 1) {
      check("--linear-key-head-dim", "keys", delta.key_columns(), tp);
      check("--linear-num-value-heads", "decays", delta.num_value_heads, tp);
    } else {
      check("--linear-num-value-heads", "rows of a gated delta layer",
            delta.conv_columns() + values + gates, tp);
    }
  }
  if (model.has_mamba()) {
    const MambaConfig& mamba = model.mamba;
    const std::int64_t count = mamba.heads(model.hidden_size), width = count * mamba.head_dim;
    check("--mamba-num-heads", "heads", width, tp);
    check("--mamba-num-heads", "z, x, B, C and dt",
          2 * width + 2 * mamba.num_groups * mamba.state_dim + count, tp);
  }
  if (!model.has_attention()) return out;
  if (model.multi_latent_attention) {
    std::int64_t count = model.num_attention_heads, rope = model.qk_pos_emb_head_dim;
    check("--q-lora-rank", "latents", model.q_lora_rank, 1);
    check("--kv-lora-rank", "latents", model.kv_lora_rank, 1);
    check("--qk-pos-emb-head-dim", "latents and a key", model.kv_lora_rank + rope, 1);
    check("--qk-head-dim", "queries", count * (model.qk_head_dim + rope), tp);
    check("--v-head-dim", "keys and values", count * (model.qk_head_dim + model.v_head_dim), tp);
    check("--v-head-dim", "heads", count * model.v_head_dim, tp);
    return out;
  }
  check("--num-attention-heads", "heads", heads, tp);
  // A block that straddles queries and keys would contain different rows once tp splits both.
  std::int64_t keys = model.kv_heads() * model.head_size();
  if (scaling() == Fp8Scaling::kBlockwise && tp > 1) {
    check("--num-query-groups", "keys", keys, tp);
  } else {
    check("--num-query-groups", "queries, keys and values", heads + 2 * keys, tp);
  }
  return out;
}

}  // namespace bev
