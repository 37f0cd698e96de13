#include "nn/latent_attention.h"

#include "autograd/offload.h"
#include "autograd/recompute.h"
#include "base/error.h"
#include "kernels/latent.h"
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
  set_logit_rows();
  add_indexer(name + ".indexer.");
  if (!o.latent.norms) return;
  if (q_down) q_norm = make_norm(name + ".q_layernorm", o.latent.q_latent_size, o.latent.norm);
  kv_norm = make_norm(name + ".kv_layernorm", o.latent.latent_size, o.latent.norm);
}

// The rotated key is shared by the heads and has no weight of their own.
void LatentAttention::set_logit_rows() {
  const AttentionOptions& o = core.options;
  const std::int64_t nope = o.latent.nope_size, rope = o.latent.rope_size;
  const LogitScaling heads{.layer = o.layer, .groups = o.heads, .group_heads = 1};
  q_up.weight.logits = kv_up.weight.logits = heads;
  q_up.weight.logits.rows = {{0, nope, o.head_size, LogitPower::kQuery},
                             {nope, rope, o.head_size, LogitPower::kWhole}};
  kv_up.weight.logits.rows = {{0, nope, nope + core.options.v_head_size, LogitPower::kKey}};
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
  for (Param& param : indexer) list.push_back(&param);
}

void LatentAttention::add_indexer(const std::string& prefix) {
  const AttentionOptions& o = core.options;
  const std::int64_t heads = o.latent.indexer_heads, size = o.latent.indexer_size;
  if (heads == 0) return;
  auto add = [&](const char* part, const Shape& shape, InitRule init) {
    Param& param = indexer.emplace_back();
    param.name = prefix + part;
    param.shape = shape;
    param.init = init;
    param.wd_mult = 0;
    param.trains = false;
  };
  const InitRule normal{InitKind::kNormal, o.init_std};
  add("wq_b.weight", {heads * size, o.latent.q_latent_size}, normal);
  add("wk.weight", {size, o.hidden_size}, normal);
  add("k_norm.weight", {size}, {InitKind::kConstant, 1});
  add("k_norm.bias", {size}, {InitKind::kConstant, 0});
  add("weights_proj.weight", {heads, o.hidden_size}, normal);
}

void LatentAttention::linears(std::vector<Linear*>& list) {
  if (q_down) list.push_back(&*q_down);
  list.insert(list.end(), {&q_up, &kv_down, &kv_up, &proj});
}

LatentSpec LatentAttention::spec(const AttentionSpec& attention) const {
  const LatentOptions& o = core.options.latent;
  return {attention.q_heads, o.latent_size, o.nope_size, o.rope_size, attention.v_head_size};
}

Var LatentAttention::rotate(Context& ctx, const Var& x, const LayerInput& input,
                            const RopeSpec& of) const {
  RopeSpec spec = of;
  spec.cos_sin = input.rope_of(core.options.rope);
  spec.interleaved = core.options.rotary_interleaved;
  return spec.cos_sin.empty() ? x : rope(ctx, x, spec);
}

LatentAttention::Source LatentAttention::source(Context& ctx, const Var& x, const LayerInput& input,
                                                const AttentionSpec& here) const {
  LatentParts parts = split_latent(ctx, kv_down.forward(ctx, x), spec(here));
  Source from;
  from.q = q_down ? q_down->forward(ctx, x) : x;
  if (q_norm) from.q = norm(ctx, from.q, q_norm->spec(false));
  from.latent = kv_norm ? norm(ctx, parts.latent, kv_norm->spec(false)) : parts.latent;
  Var key = enter_tensor_parallel(ctx, parts.rope_key, input.layout->tokens);
  from.rope_key = rotate(ctx, key, input, {{}, 1, core.options.latent.rope_size});
  return from;
}

LatentRows LatentAttention::rows(Context& ctx, const Source& from, const LayerInput& input,
                                 const AttentionSpec& here) const {
  const AttentionOptions& o = core.options;
  Var q = q_up.enter(ctx, from.q, input.layout->tokens, o.tensor_parallel);
  RopeSpec positions{{}, here.q_heads, o.head_size, false, o.latent.nope_size};
  return {rotate(ctx, q, input, positions), from.latent, from.rope_key};
}

Var LatentAttention::heads(Context& ctx, const LatentRows& of, const SequenceLayout& layout,
                           const AttentionSpec& here) const {
  Var kv = kv_up.enter(ctx, of.latent, layout.tokens, core.options.tensor_parallel);
  return join_latent_heads(ctx, of.q, kv, of.rope_key, spec(here));
}

// Recomputes the heads from the latents, which are saved anyway and are smaller.
class LatentAttention::HeadsRecipe : public Recipe {
 public:
  HeadsRecipe(const LatentAttention& attention, const Source& from, const LayerInput& input,
              const AttentionSpec& here)
      : attention_(attention),
        q_(from.q),
        latent_(from.latent),
        rope_key_(from.rope_key),
        input_(input),
        here_(here) {}
  Tensor make(Context& ctx) const override {
    TapeScope unrecorded(ctx, nullptr);
    ScopedValue<const MetricBlock*> counted_before(ctx.metrics, nullptr);
    ScopedValue<const SequenceLayout*> random_numbers(ctx.layout, input_.layout);
    Source from{q_.get(ctx), latent_.get(ctx), rope_key_.get(ctx)};
    LatentRows rows = attention_.rows(ctx, from, input_, here_);
    return attention_.heads(ctx, rows, *input_.layout, here_).tensor;
  }

 private:
  struct Kept {
    explicit Kept(const Var& var) : saved(var), placement(var.placement) {}
    Var get(Context& ctx) const { return {saved.get(ctx), placement, -1, nullptr}; }
    Saved saved;
    Placement placement;
  };

  const LatentAttention& attention_;
  Kept q_, latent_, rope_key_;
  LayerInput input_;
  AttentionSpec here_;
};

// A whole prompt is up-projected to keys and values as in training, which is cheaper than attention
// over the wide latents.
Var LatentAttention::decode(Context& ctx, const LatentRows& of, const LayerInput& input,
                            const AttentionSpec& here) const {
  const SequenceLayout& layout = *input.layout;
  const DecodeStep& step = *input.decode;
  if (!absorbs(ctx)) {
    return cached_attention(ctx, heads(ctx, of, layout, here), input.state->kv, step, here);
  }
  keep_latents(ctx, of, input.state->kv.keys, step, spec(here));
  if (step.whole_prompts) {
    std::vector<AttentionRun> runs = step.runs_in_batch();
    return attention(ctx, heads(ctx, of, layout, here),
                     {runs, layout.samples, layout.sample_positions}, here);
  }
  return cached_latent_attention(ctx, of, kv_up.weight, input.state->kv.keys, step, here,
                                 spec(here));
}

Var LatentAttention::forward(Context& ctx, const Var& x, const LayerInput& input) const {
  const AttentionOptions& o = core.options;
  AttentionSpec here = core.spec(ctx);
  OffloadScope qkv_part(ctx, OffloadPart::kQkvLinear, x);
  Source from = source(ctx, x, input, here);
  LatentRows of = rows(ctx, from, input, here);
  Var out;
  if (input.decode != nullptr) {
    out = decode(ctx, of, input, here);
  } else {
    Var joined = qkv_part.without(heads(ctx, of, *input.layout, here));
    if (o.latent.recompute_up && ctx.tape != nullptr) {
      joined.recipe = make_recipe<HeadsRecipe>(ctx, *this, from, input, here);
    }
    out = core.forward(ctx, joined, *input.layout, here);
  }
  OffloadScope proj_part(ctx, OffloadPart::kAttnProj, out);
  return proj_part.without(proj.leave(ctx, out, o.tensor_parallel));
}

bool LatentAttention::absorbs(const Context& ctx) const {
  return ctx.kernels.latent.absorb && kv_up.adapters.empty();
}

StateSpec LatentAttention::state(const Context& ctx) const {
  const AttentionOptions& o = core.options;
  if (absorbs(ctx)) return {o.latent.latent_size + o.latent.rope_size, 0, 0};
  std::int64_t heads = o.heads / ctx.mesh.tp().size();
  return {heads * o.head_size, heads * o.v_head_size, 0};
}

}  // namespace bev
