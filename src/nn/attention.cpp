#include "nn/attention.h"

#include <algorithm>

#include "ops/context_attention.h"
#include "ops/head_exchange.h"
#include "ops/parallel_linear.h"

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

AttentionSpec SelfAttention::spec(const Context& ctx) const {
  const AttentionOptions& o = options;
  Group& tp = ctx.mesh.tp();
  AttentionSpec spec;
  spec.q_heads = o.heads / tp.size();
  spec.kv_heads = std::max<std::int64_t>(o.kv_heads / tp.size(), 1);
  spec.head_size = o.head_size;
  spec.head_offset = spec.q_heads * tp.rank();
  spec.scale = o.scale;
  spec.softcap = o.softcap;
  spec.window = o.window;
  spec.causal = o.causal;
  spec.dropout = o.dropout;
  spec.recompute = o.recompute_core;
  return spec;
}

// Neighbouring ranks exchange heads; where they are not all of cp, the keys then go around a ring.
Var SelfAttention::exchange_and_attend(Context& ctx, const Var& rows, const SequenceLayout& layout,
                                       const AttentionSpec& spec) const {
  bool all = options.context == ContextExchange::kHeads;
  Group& group = all ? ctx.mesh.cp() : ctx.mesh.group(MeshGroup::kCpInner);
  std::int64_t n = group.size(), block = ctx.mesh.at().cp / n, d = spec.head_size;
  HeadExchange exchange;
  exchange.group = &group;
  exchange.members = std::span(layout.ring.sets)
                         .subspan(static_cast<std::size_t>(block * n), static_cast<std::size_t>(n));
  const ContextRows& context = all ? layout.heads : layout.mixed;
  exchange.together = &context.sets[static_cast<std::size_t>(block)];
  exchange.parts = {spec.q_heads * d, spec.kv_heads * d, spec.kv_heads * d};
  AttentionSpec inside = spec;
  inside.q_heads /= n;
  inside.kv_heads /= n;
  inside.head_offset += inside.q_heads * group.rank();
  Var x = scatter_heads(ctx, rows, exchange);
  Var y = all ? attention(ctx, x, {layout.runs, context.samples, context.sample_positions}, inside)
              : context_attention(ctx, x, {&ctx.mesh.group(MeshGroup::kCpOuter), &context, nullptr},
                                  inside);
  exchange.parts = {spec.q_heads * d};
  return gather_heads(ctx, y, exchange);
}

Var SelfAttention::attend(Context& ctx, const Var& rows, const SequenceLayout& layout,
                          const AttentionSpec& spec) const {
  if (ctx.mesh.cp().size() == 1) {
    return attention(ctx, rows, {layout.runs, layout.samples, layout.sample_positions}, spec);
  }
  switch (options.context) {
    case ContextExchange::kRing:
      return context_attention(ctx, rows, {&ctx.mesh.cp(), &layout.ring, nullptr}, spec);
    case ContextExchange::kGather:
      return context_attention(ctx, rows, {&ctx.mesh.cp(), &layout.ring, &layout.all_tokens()},
                               spec);
    case ContextExchange::kHeads:
    case ContextExchange::kHeadsAndRing:
      break;
  }
  return exchange_and_attend(ctx, rows, layout, spec);
}

Var SelfAttention::forward(Context& ctx, const Var& x, const LayerInput& input) const {
  const AttentionOptions& o = options;
  AttentionSpec here = spec(ctx);
  Var rows = qkv.enter(ctx, x, input.layout->tokens, o.tensor_parallel);
  if (ctx.mesh.group(MeshGroup::kKv).size() > 1) {
    rows = share_keys(ctx, rows, here.q_heads * here.head_size);
  }
  if (q_norm) {
    rows = head_norm(ctx, rows,
                     {&q_norm->weight, &k_norm->weight, here.q_heads, here.kv_heads, o.head_size,
                      q_norm->epsilon, q_norm->offset});
  }
  const Tensor& table = o.window >= 0 ? input.rope_local : input.rope;
  if (!table.empty()) {
    rows =
        rope(ctx, rows, {table, here.q_heads + here.kv_heads, o.head_size, o.rotary_interleaved});
  }
  Var heads = input.decode != nullptr
                  ? cached_attention(ctx, rows, input.state->kv, *input.decode, here)
                  : attend(ctx, rows, *input.layout, here);
  return proj.leave(ctx, heads, o.tensor_parallel);
}

}  // namespace bev
