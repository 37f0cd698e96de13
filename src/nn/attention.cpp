#include "nn/attention.h"

namespace bev {

SelfAttention::SelfAttention(const std::string& name, const AttentionOptions& o)
    : options(o),
      qkv(column_linear(
          {name + ".linear_qkv", (o.heads + 2 * o.kv_heads) * o.head_size, o.hidden_size,
           o.qkv_bias, o.init_std},
          {o.heads * o.head_size, o.kv_heads * o.head_size, o.kv_heads * o.head_size})),
      proj(row_linear({name + ".linear_proj", o.hidden_size, o.heads * o.head_size, o.proj_bias,
                       o.proj_init_std})) {
  if (o.qk_norm) {
    q_norm = make_norm(name + ".q_layernorm", o.head_size, o.norm);
    k_norm = make_norm(name + ".k_layernorm", o.head_size, o.norm);
  }
}

void SelfAttention::params(std::vector<Param*>& list) {
  qkv.params(list);
  if (q_norm) {
    q_norm->params(list);
    k_norm->params(list);
  }
  proj.params(list);
}

Var SelfAttention::forward(Context& ctx, const Var& x, const LayerInput& input) const {
  const AttentionOptions& o = options;
  Group& tp = ctx.mesh.tp();
  AttentionSpec spec;
  spec.q_heads = o.heads / tp.size();
  spec.kv_heads = o.kv_heads / tp.size();
  spec.head_size = o.head_size;
  spec.head_offset = spec.q_heads * tp.rank();
  spec.scale = o.scale;
  spec.softcap = o.softcap;
  spec.window = o.window;
  spec.causal = o.causal;
  spec.dropout = o.dropout;
  spec.recompute = o.recompute_core;

  Var rows = qkv.forward(ctx, x);
  if (q_norm) {
    rows = head_norm(ctx, rows,
                     {&q_norm->weight, &k_norm->weight, spec.q_heads, spec.kv_heads, o.head_size,
                      q_norm->epsilon, q_norm->offset});
  }
  const Tensor& table = o.window >= 0 ? input.rope_local : input.rope;
  if (!table.empty()) {
    rows =
        rope(ctx, rows, {table, spec.q_heads + spec.kv_heads, o.head_size, o.rotary_interleaved});
  }
  Var heads = input.decode != nullptr
                  ? cached_attention(ctx, rows, input.state->kv, input.decode->runs,
                                     input.decode->write_rows, spec)
                  : attention(ctx, rows, *input.layout, spec);
  return proj.forward_and_leave(ctx, heads, o.sequence_parallel);
}

}  // namespace bev
