#include "nn/cross_attention.h"

#include "ops/sequence_gather.h"

namespace bev {

CrossAttention::CrossAttention(const std::string& name, const AttentionOptions& o)
    : core_(name, o),
      q_(column_linear(
          {name + ".linear_q", o.heads * o.head_size, o.hidden_size, o.qkv_bias, o.init_std}, {})),
      kv_(column_linear(
          {name + ".linear_kv", o.kv_heads * (o.head_size + core_.options.v_head_size),
           o.hidden_size, o.qkv_bias, o.init_std},
          {o.kv_heads * o.head_size, o.kv_heads * core_.options.v_head_size})),
      proj_(row_linear({name + ".linear_proj", o.hidden_size, o.heads * core_.options.v_head_size,
                        o.proj_bias, o.proj_init_std})) {}

void CrossAttention::params(std::vector<Param*>& list) {
  for (Linear* linear : {&q_, &kv_, &proj_}) linear->params(list);
}

void CrossAttention::linears(std::vector<Linear*>& list) {
  list.insert(list.end(), {&q_, &kv_, &proj_});
}

Var CrossAttention::forward(Context& ctx, const Var& x, const SequenceLayout& layout,
                            const CrossInput& to) const {
  const TensorParallel& tp = core_.options.tensor_parallel;
  Var queries = gather_sequence(ctx, q_.enter(ctx, x, layout.tokens, tp), layout);
  Var keys = gather_sequence(ctx, kv_.enter(ctx, to.states, to.layout.tokens, tp), to.layout);
  std::vector<AttentionRun> runs =
      visible_runs(whole_sequence(layout), 0, whole_sequence(to.layout), 0, {.causal = false});
  Var heads = cross_attention(ctx, queries, keys, std::move(runs), core_.spec(ctx));
  return proj_.leave(ctx, own_sequence(ctx, heads, layout), tp);
}

}  // namespace bev
