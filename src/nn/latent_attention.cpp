#include "nn/latent_attention.h"

#include "autograd/offload.h"
#include "ops/collective.h"
#include "ops/linear.h"

namespace bev {

namespace {

std::string query_name(const std::string& name, const AttentionOptions& o) {
  return name + (o.latent.q_latent_size > 0 ? ".linear_q_up_proj" : ".linear_q_proj");
}

}  // namespace

LatentAttention::LatentAttention(const std::string& name, const AttentionOptions& o)
    : core(name, o),
      q_up(column_linear(
          {query_name(name, o), o.heads * o.head_size,
           o.latent.q_latent_size > 0 ? o.latent.q_latent_size : o.hidden_size, false, o.init_std},
          {})),
      kv_down(
          whole_linear({name + ".linear_kv_down_proj", o.latent.latent_size + o.latent.rope_size,
                        o.hidden_size, o.qkv_bias, o.init_std})),
      kv_up(column_linear(
          {name + ".linear_kv_up_proj", o.heads * (o.latent.nope_size + o.v_head_size),
           o.latent.latent_size, false, o.init_std},
          {})),
      proj(row_linear({name + ".linear_proj", o.hidden_size, o.heads * o.v_head_size, o.proj_bias,
                       o.proj_init_std})) {
  if (o.latent.q_latent_size > 0) {
    q_down = whole_linear({name + ".linear_q_down_proj", o.latent.q_latent_size, o.hidden_size,
                           o.qkv_bias, o.init_std});
  }
  if (!o.latent.norms) return;
  if (q_down) q_norm = make_norm(name + ".q_layernorm", o.latent.q_latent_size, o.latent.norm);
  kv_norm = make_norm(name + ".kv_layernorm", o.latent.latent_size, o.latent.norm);
}

void LatentAttention::params(std::vector<Param*>& list) {
  if (q_down) q_down->params(list);
  if (q_norm) q_norm->params(list);
  q_up.params(list);
  kv_down.params(list);
  if (kv_norm) kv_norm->params(list);
  kv_up.params(list);
  core.params(list);
  proj.params(list);
}

void LatentAttention::linears(std::vector<Linear*>& list) {
  if (q_down) list.push_back(&*q_down);
  list.insert(list.end(), {&q_up, &kv_down, &kv_up, &proj});
}

LatentSpec LatentAttention::spec(const AttentionSpec& attention) const {
  const LatentOptions& o = core.options.latent;
  return {attention.q_heads, o.latent_size, o.nope_size, o.rope_size, attention.v_head_size};
}

Var LatentAttention::queries(Context& ctx, const Var& x, std::int64_t tokens) const {
  Var from = x;
  if (q_down) from = q_down->forward(ctx, x);
  if (q_norm) from = norm(ctx, from, q_norm->spec(false));
  return q_up.enter(ctx, from, tokens, core.options.tensor_parallel);
}

Var LatentAttention::heads(Context& ctx, const LatentRows& rows, const SequenceLayout& layout,
                           const AttentionSpec& here) const {
  Var kv = kv_up.enter(ctx, rows.latent, layout.tokens, core.options.tensor_parallel);
  return join_latent_heads(ctx, rows.q, kv, rows.rope_key, spec(here));
}

namespace {

// The runs of sequences that begin with this call, over its own rows; none where one does not.
std::vector<AttentionRun> own_runs(const DecodeStep& step) {
  std::vector<AttentionRun> runs = step.runs;
  for (AttentionRun& run : runs) {
    if (run.offset != 0 || run.k_count != run.q_count || !step.key_counts.empty()) return {};
    run.k_begin = run.q_begin;
  }
  return runs;
}

}  // namespace

// Whole prompts make keys and values as training does: that is less work than wide latents.
Var LatentAttention::decode(Context& ctx, const LatentRows& rows, const LayerInput& input,
                            const AttentionSpec& here) const {
  keep_latents(ctx, rows, input.state->kv.keys, *input.decode, spec(here));
  if (std::vector<AttentionRun> runs = own_runs(*input.decode); !runs.empty()) {
    const SequenceLayout& layout = *input.layout;
    return attention(ctx, heads(ctx, rows, layout, here),
                     {runs, layout.samples, layout.sample_positions}, here);
  }
  return cached_latent_attention(ctx, rows, kv_up.weight, input.state->kv.keys, *input.decode, here,
                                 spec(here));
}

Var LatentAttention::forward(Context& ctx, const Var& x, const LayerInput& input) const {
  const AttentionOptions& o = core.options;
  AttentionSpec here = core.spec(ctx);
  std::int64_t tokens = input.layout->tokens;
  OffloadScope qkv_part(ctx, OffloadPart::kQkvLinear, x);
  LatentParts parts = split_latent(ctx, kv_down.forward(ctx, x), spec(here));
  LatentRows rows{queries(ctx, x, tokens), parts.latent,
                  enter_tensor_parallel(ctx, parts.rope_key, tokens)};
  if (kv_norm) rows.latent = norm(ctx, parts.latent, kv_norm->spec(false));
  const Tensor& table = o.window >= 0 ? input.rope_local : input.rope;
  if (!table.empty()) {
    bool pairs = o.rotary_interleaved;
    rows.q = rope(ctx, rows.q, {table, here.q_heads, o.head_size, pairs, o.latent.nope_size});
    rows.rope_key = rope(ctx, rows.rope_key, {table, 1, o.latent.rope_size, pairs});
  }
  const SequenceLayout& layout = *input.layout;
  Var out;
  if (input.decode != nullptr) {
    out = decode(ctx, rows, input, here);
  } else {
    Var joined = qkv_part.without(heads(ctx, rows, layout, here));
    out = core.forward(ctx, joined, layout, here);
  }
  OffloadScope proj_part(ctx, OffloadPart::kAttnProj, out);
  return proj_part.without(proj.leave(ctx, out, o.tensor_parallel));
}

}  // namespace bev
