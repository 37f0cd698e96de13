#include "nn/moe.h"

#include "autograd/interleaved_backward.h"
#include "autograd/offload.h"
#include "autograd/recompute.h"

namespace bev {

namespace {

Param make_param(std::string name, const Shape& shape, Split split, InitRule init) {
  Param param;
  param.name = std::move(name);
  param.shape = shape;
  param.split = std::move(split);
  param.init = init;
  param.wd_mult = init.kind == InitKind::kConstant ? 0 : 1;
  return param;
}

constexpr InitRule kZeros = {InitKind::kConstant, 0};

// fc1 of each expert is split over etp as the fc1 of a dense MLP over tp.
GroupedLinear make_fc1(const std::string& name, const MoeOptions& o) {
  const MlpOptions& expert = o.expert;
  LinearSpec spec{name, expert.ffn_size, expert.hidden_size, expert.bias, expert.init_std};
  if (!expert.activation.gated) return grouped_column_linear(spec, o.experts, {});
  spec.out *= 2;
  return grouped_column_linear(spec, o.experts, {expert.ffn_size, expert.ffn_size});
}

GroupedLinear make_fc2(const std::string& name, const MoeOptions& o) {
  const MlpOptions& expert = o.expert;
  return grouped_row_linear(
      {name, expert.hidden_size, expert.ffn_size, expert.bias, expert.down_init_std}, o.experts);
}

MlpOptions shared_options(const MoeOptions& o) {
  MlpOptions shared = o.expert;
  shared.ffn_size = o.shared_expert_size;
  shared.bias = false;
  return shared;
}

}  // namespace

Moe::Moe(const std::string& name, const MoeOptions& o)
    : options(o),
      fc1(make_fc1(name + ".experts.linear_fc1", o)),
      fc2(make_fc2(name + ".experts.linear_fc2", o)) {
  const std::int64_t hidden = o.expert.hidden_size;
  const InitRule normal = {InitKind::kNormal, o.expert.init_std};
  router = make_param(name + ".router.weight", {o.experts, hidden}, {}, normal);
  if (o.router_bias) router_bias = make_param(name + ".router.bias", {o.experts}, {}, kZeros);
  if (o.expert_bias) {
    expert_bias = make_param(name + ".router.expert_bias", {o.experts}, {}, kZeros);
    expert_bias->format = ParamFormat::kF32;
    expert_bias->sign_rate = o.bias_update_rate;
    expert_bias->counted = false;
    expert_bias->trains = o.bias_update_rate != 0;
  }
  if (o.shared_expert_size == 0) return;
  shared.emplace(name + ".shared_experts", shared_options(o));
  if (o.shared_expert_gate) {
    shared_gate = make_param(name + ".shared_experts.gate.weight", {1, hidden}, {}, normal);
  }
}

void Moe::params(std::vector<Param*>& list) {
  list.push_back(&router);
  if (router_bias) list.push_back(&*router_bias);
  if (expert_bias) list.push_back(&*expert_bias);
  fc1.params(list);
  fc2.params(list);
  if (shared) shared->params(list);
  if (shared_gate) list.push_back(&*shared_gate);
}

// Dispatches the small tensors first, so that they do not wait for the tokens.
Moe::Dispatched Moe::begin_dispatch(Context& ctx, const Var& x, const Routing& routing,
                                    const DispatchRef& dispatch) const {
  const ExpertParallel& parallel = options.parallel;
  bool overlap = (parallel.overlap_shared && shared) || parallel.yields_to_partner;
  Dispatched dispatched;
  Var choices{routing.experts, routing.probs.placement, -1, nullptr};
  dispatched.choices = start_dispatch(ctx, choices, dispatch, overlap);
  dispatched.probs = start_dispatch(ctx, routing.probs, dispatch, overlap);
  dispatched.tokens = start_dispatch(ctx, x, dispatch, overlap);
  if (parallel.yields_to_partner) yield_to_partner(ctx);
  return dispatched;
}

Var Moe::run_experts(Context& ctx, Dispatched dispatched, const Routing& routing,
                     const DispatchRef& dispatch) const {
  Var choices = finish_dispatch(ctx, std::move(dispatched.choices));
  Var probs = finish_dispatch(ctx, std::move(dispatched.probs));
  ExpertRows rows = rows_of_experts(ctx, choices.tensor, options.experts, *dispatch);
  Var expert_tokens = finish_dispatch(ctx, std::move(dispatched.tokens));
  OffloadScope fc1_part(ctx, OffloadPart::kExpertFc1, expert_tokens);
  // If wgrad reads FP8 too, the permuted rows are quantised without being materialised.
  const Fp8Recipe& fp8 = fc1.weight.fp8;
  bool rounds = fp8.used() && fp8.wgrad && fc1.adapters.empty();
  Var in = permute(ctx, expert_tokens, rows, rounds && !options.scale_input);
  if (options.scale_input) in = scale_by_probs(ctx, in, probs, rows);
  expert_tokens = {};
  Var up = fc1_part.without(fc1.forward(ctx, in, rows));
  mark_kept(ctx, OffloadPart::kMoeAct, up);
  Var inner = options.scale_input
                  ? activation(ctx, up, options.expert.activation)
                  : weighted_activation(ctx, up, options.expert.activation, probs, rows);
  mark_kept(ctx, OffloadPart::kExpertFc2, inner);
  Var out = unpermute(ctx, fc2.forward(ctx, inner, rows), rows, rounds);
  Var y = combine_tokens(ctx, out, routing.probs.placement, dispatch,
                         options.parallel.yields_to_partner);
  return fc2.bias ? add_expert_biases(ctx, y, routing, *fc2.bias) : y;
}

Var Moe::run_shared(Context& ctx, const Var& x, std::int64_t tokens) const {
  Var y = shared->forward(ctx, x, tokens);
  if (!shared_gate) return y;
  // The gate is a router with one expert, whose probability is the sigmoid.
  RouterSpec gate;
  gate.rule = {.topk = 1, .score = RouterScore::kSigmoid, .normalize = false};
  Routing open = route(ctx, router_logits(ctx, x, *shared_gate, nullptr), gate, nullptr);
  return scale_by_probs(ctx, y, open.probs, sort_rows(ctx, open.experts, 0, 1));
}

Var Moe::pass_shared(Context& ctx, const Var& x, std::int64_t tokens) const {
  if (!options.recompute_shared) return run_shared(ctx, x, tokens);
  mark_kept(ctx, OffloadPart::kMlpFc1, x);
  auto run = [this, tokens](Context& to, const Var& in) { return run_shared(to, in, tokens); };
  return recompute(ctx, "recompute shared expert", x, run);
}

Var Moe::forward(Context& ctx, const Var& x, const SequenceLayout& layout) const {
  RouterSpec spec = options.router;
  spec.rule = options.routing;
  spec.expert_bias = expert_bias ? &*expert_bias : nullptr;
  // If experts have a mesh of their own, tp ranks with the same tokens dispatch a share each.
  const MeshShape& mesh = ctx.mesh.shape();
  bool shares = mesh.tp > 1 && x.placement[Axis::kTp] == PlaceState::kReplicated &&
                (mesh.ep > 1 || mesh.etp != mesh.tp);
  Var own = shares ? share_tokens(ctx, x) : x;
  Var logits =
      router_logits(ctx, own, router, router_bias ? &*router_bias : nullptr, spec, &layout);
  Routing routing = route(ctx, logits, spec, &layout);
  if (options.capacity.factor > 0 && ctx.training) {
    routing = limit_choices(ctx, routing, options.capacity, options.experts, layout);
  }
  DispatchRef dispatch =
      plan_dispatch(ctx, options.parallel, routing.experts, options.experts, own.placement, layout);
  Dispatched dispatched = begin_dispatch(ctx, own, routing, dispatch);
  Var shared_out = shared ? pass_shared(ctx, x, layout.tokens) : Var();
  Var y = run_experts(ctx, std::move(dispatched), routing, dispatch);
  if (shares) y = unite_tokens(ctx, y, layout.tokens);
  return shared ? add(ctx, y, shared_out) : y;
}

}  // namespace bev
