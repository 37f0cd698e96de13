#include "nn/attention.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "autograd/offload.h"
#include "autograd/recompute.h"
#include "nn/latent_attention.h"
#include "ops/attention/ring_attention.h"
#include "ops/attention/ulysses_attention.h"
#include "ops/parallel_linear.h"
#include "ops/recurrent/columns.h"
#include "ops/sigmoid_gate.h"

namespace bev {

CoreAttention::CoreAttention(const std::string& name, const AttentionOptions& o) : options(o) {
  if (o.v_head_size == 0) options.v_head_size = o.head_size;
  if (o.rule.sink != SoftmaxSink::kLearned) return;
  sinks.emplace();
  sinks->name = name + ".core_attention.softmax_offset";
  sinks->shape = {o.heads};
  sinks->split = {Axis::kTp, 0, {}};
  sinks->init = {InitKind::kNormal, o.init_std};
  sinks->wd_mult = 0;
}

void CoreAttention::params(std::vector<Param*>& list) {
  if (sinks) list.push_back(&*sinks);
}

AttentionSpec CoreAttention::spec(const Context& ctx) const {
  const AttentionOptions& o = options;
  Group& tp = ctx.mesh.tp();
  AttentionSpec spec;
  spec.q_heads = o.heads / tp.size();
  spec.kv_heads = std::max<std::int64_t>(o.kv_heads / tp.size(), 1);
  spec.head_size = o.head_size;
  spec.v_head_size = o.v_head_size;
  spec.head_offset = spec.q_heads * tp.rank();
  spec.rule = o.rule;
  spec.recompute = o.recompute_core;
  spec.sinks.logits = sinks ? &*sinks : nullptr;
  return spec;
}

namespace {
// Repeats the Ulysses all-to-all when the rows before it are recomputed.
class ScatteredRecipe : public Recipe {
 public:
  ScatteredRecipe(const Var& rows, const UlyssesExchange& exchange)
      : rows_(rows), placement_(rows.placement), exchange_(exchange) {}
  Tensor make(Context& ctx) const override {
    TapeScope unrecorded(ctx, nullptr);
    return scatter_heads(ctx, {rows_.get(ctx), placement_, -1, nullptr}, exchange_).tensor;
  }

 private:
  Saved rows_;
  Placement placement_;
  UlyssesExchange exchange_;
};
}  // namespace

// Ulysses over neighbouring ranks; if they are not all of cp, ring attention over the others.
Var CoreAttention::exchange_and_attend(Context& ctx, const Var& rows, const SequenceLayout& layout,
                                       const AttentionSpec& spec) const {
  bool all = options.context == ContextExchange::kHeads;
  Group& group = all ? ctx.mesh.cp() : ctx.mesh.group(MeshGroup::kCpInner);
  std::int64_t n = group.size(), block = ctx.mesh.at().cp / n;
  UlyssesExchange exchange;
  exchange.group = &group;
  exchange.members = std::span(layout.ring.sets)
                         .subspan(static_cast<std::size_t>(block * n), static_cast<std::size_t>(n));
  const ContextRows& context = all ? layout.heads : layout.mixed;
  exchange.together = &context.sets[static_cast<std::size_t>(block)];
  exchange.parts = {spec.q_columns(), spec.k_columns(), spec.v_columns()};
  AttentionSpec inside = spec;
  inside.q_heads /= n;
  inside.kv_heads /= n;
  inside.head_offset += inside.q_heads * group.rank();
  inside.sinks.first = inside.q_heads * group.rank();
  Var x = scatter_heads(ctx, rows, exchange);
  if (rows.recipe && ctx.tape != nullptr) {
    x.recipe = make_recipe<ScatteredRecipe>(ctx, rows, exchange);
  }
  Var y = all ? attention(ctx, x, {layout.runs, context.samples, context.sample_positions}, inside)
              : ring_attention(ctx, x, {&ctx.mesh.group(MeshGroup::kCpOuter), &context, nullptr},
                               inside);
  exchange.parts = {spec.out_columns()};
  return gather_heads(ctx, y, exchange);
}

Var CoreAttention::attend(Context& ctx, const Var& rows, const SequenceLayout& layout,
                          const AttentionSpec& spec) const {
  const bool blocks = layout.block_power >= 0;
  Group& cp = blocks ? ctx.mesh.sequence_block(layout.block_power) : ctx.mesh.cp();
  if (cp.size() == 1) {
    return attention(ctx, rows, {layout.runs, layout.samples, layout.sample_positions}, spec);
  }
  switch (options.context) {
    case ContextExchange::kRing:
      return ring_attention(ctx, rows, {&cp, &layout.ring, nullptr}, spec);
    case ContextExchange::kGather:
      return ring_attention(ctx, rows, {&cp, &layout.ring, &layout.all_tokens()}, spec);
    case ContextExchange::kHeads:
    case ContextExchange::kHeadsAndRing:
      break;
  }
  return exchange_and_attend(ctx, rows, layout, spec);
}

Var CoreAttention::forward(Context& ctx, const Var& rows, const SequenceLayout& layout,
                           const AttentionSpec& spec) const {
  OffloadScope part(ctx, OffloadPart::kCoreAttn, rows);
  Var out = attend(ctx, rows, layout, spec);
  part.with_result();
  return out;
}

namespace {
// Parts of the rows that the input is projected to.
std::vector<std::int64_t> row_parts(const AttentionOptions& o) {
  std::vector<std::int64_t> parts;
  if (o.output_gate) parts.push_back(o.heads * o.v_head_size);
  parts.insert(parts.end(),
               {o.heads * o.head_size, o.kv_heads * o.head_size, o.kv_heads * o.v_head_size});
  return parts;
}

Linear make_qkv(const std::string& name, const AttentionOptions& o) {
  std::vector<std::int64_t> parts = row_parts(o);
  const std::int64_t rows = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  return column_linear({name + ".linear_qkv", rows, o.hidden_size, o.qkv_bias, o.init_std}, parts);
}
}  // namespace

SelfAttention::SelfAttention(const std::string& name, const AttentionOptions& o)
    : core(name, o),
      qkv(make_qkv(name, core.options)),
      proj(row_linear({name + ".linear_proj", o.hidden_size, o.heads * core.options.v_head_size,
                       o.proj_bias, o.proj_init_std})) {
  qkv.weight.fused = true;
  const std::int64_t shared = o.heads / o.kv_heads, d = o.head_size;
  qkv.weight.logits = {.layer = o.layer,
                       .groups = o.kv_heads,
                       .group_heads = shared,
                       .rows = {{0, shared * d, shared * d, LogitPower::kQuery},
                                {o.heads * d, d, d, LogitPower::kKey}}};
  if (!o.qk_norm || o.qk_norm_kind == QkNorm::kUnitAfterRope) return;
  const bool width = o.qk_norm_kind == QkNorm::kWidth;
  auto make = [&](const char* part, std::int64_t heads) {
    Norm norm = make_norm(name + part, (width ? heads : 1) * o.head_size, o.norm);
    if (width) norm.weight.split = {Axis::kTp, 0, {}};
    return norm;
  };
  q_norm = make(".q_layernorm", o.heads);
  k_norm = make(".k_layernorm", o.kv_heads);
}

void SelfAttention::params(std::vector<Param*>& list) {
  qkv.params(list);
  if (q_norm) {
    q_norm->params(list);
    k_norm->params(list);
  }
  core.params(list);
  proj.params(list);
}

void SelfAttention::linears(std::vector<Linear*>& list) { list.insert(list.end(), {&qkv, &proj}); }

Var SelfAttention::normalise(Context& ctx, const Var& rows, const AttentionSpec& here) const {
  const AttentionOptions& o = core.options;
  HeadNormSpec spec{nullptr, nullptr, here.q_heads, here.kv_heads, o.head_size, o.norm.epsilon, 0};
  if (q_norm) {
    spec.q_weight = &q_norm->weight;
    spec.k_weight = &k_norm->weight;
    spec.offset = q_norm->offset;
  }
  return head_norm(ctx, rows, spec);
}

Var SelfAttention::prepare(Context& ctx, Var rows, const LayerInput& input,
                           const AttentionSpec& here) const {
  const AttentionOptions& o = core.options;
  if (o.qk_norm && o.qk_norm_kind == QkNorm::kWidth) {
    // Before keys are shared: each rank normalises its own columns.
    rows = width_norm(ctx, rows,
                      {&q_norm->weight, &k_norm->weight, q_norm->weight.local[0],
                       k_norm->weight.local[0], q_norm->epsilon, q_norm->offset});
  }
  if (ctx.mesh.group(MeshGroup::kKv).size() > 1) {
    rows = share_keys(ctx, rows, here.q_columns());
  }
  if (o.qk_norm && o.qk_norm_kind == QkNorm::kHead) rows = normalise(ctx, rows, here);
  Tensor table = input.rope_of(o.rope);
  if (!table.empty()) {
    rows =
        rope(ctx, rows, {table, here.q_heads + here.kv_heads, o.head_size, o.rotary_interleaved});
  }
  const bool after =
      o.qk_norm_kind == QkNorm::kHeadAfterRope || o.qk_norm_kind == QkNorm::kUnitAfterRope;
  if (o.qk_norm && after && !table.empty()) rows = normalise(ctx, rows, here);
  if (o.scaled_queries) rows = rope(ctx, rows, {input.query_scale, here.q_heads, o.head_size});
  return rows;
}

Var SelfAttention::forward(Context& ctx, const Var& x, const LayerInput& input) const {
  const AttentionOptions& o = core.options;
  AttentionSpec here = core.spec(ctx);
  OffloadScope qkv_part(ctx, OffloadPart::kQkvLinear, x);
  Var rows = qkv_part.without(qkv.enter(ctx, x, input.layout->tokens, o.tensor_parallel));
  Var gate;
  if (o.output_gate) {
    const std::array<std::int64_t, 2> parts = {here.out_columns(),
                                               rows.shape()[1] - here.out_columns()};
    std::vector<Var> split = split_columns(ctx, rows, parts);
    gate = std::move(split[0]);
    rows = std::move(split[1]);
  }
  rows = prepare(ctx, std::move(rows), input, here);
  Var heads = input.decode != nullptr
                  ? cached_attention(ctx, rows, input.state->kv, *input.decode, here)
                  : core.forward(ctx, rows, *input.layout, here);
  if (o.output_gate) heads = sigmoid_gate(ctx, heads, gate);
  OffloadScope proj_part(ctx, OffloadPart::kAttnProj, heads);
  return proj_part.without(proj.leave(ctx, heads, o.tensor_parallel));
}

StateSpec SelfAttention::state(const Context& ctx) const {
  const AttentionOptions& o = core.options;
  std::int64_t heads = std::max<std::int64_t>(o.kv_heads / ctx.mesh.tp().size(), 1);
  return {heads * o.head_size, heads * o.v_head_size, 0};
}

std::unique_ptr<Mixer> make_attention(const std::string& name, const AttentionOptions& options) {
  if (options.latent.latent_size > 0) return std::make_unique<LatentAttention>(name, options);
  return std::make_unique<SelfAttention>(name, options);
}

}  // namespace bev
