#include "nn/mlp.h"

#include <array>
#include <cmath>

#include "autograd/offload.h"
#include "base/text.h"
#include "ops/recurrent/columns.h"
#include "ops/xielu.h"

namespace bev {

namespace {
std::vector<std::int64_t> fc1_segments(const MlpOptions& o) {
  if (!o.activation.gated) return {};
  return {o.ffn_size, o.ffn_size};
}
}  // namespace

Mlp::Mlp(const std::string& name, const MlpOptions& o)
    : options(o),
      fc1(column_linear({name + ".linear_fc1", o.activation.gated ? 2 * o.ffn_size : o.ffn_size,
                         o.hidden_size, o.bias, o.init_std},
                        fc1_segments(o))),
      fc2(row_linear({name + ".linear_fc2", o.hidden_size, o.ffn_size, o.bias, o.down_init_std})) {
  if (o.activation.kind != Activation::kXielu) return;
  auto make = [&](const char* part, double value, bool trains) {
    Param param;
    param.name = concat(name, ".activation.", part);
    param.shape = {1};
    param.init = {InitKind::kConstant, value};
    param.wd_mult = 0;
    param.trains = trains;
    return param;
  };
  // Slopes that begin at 0.8 on either side.
  constexpr double kBeta = 0.5, kSlope = 0.8;
  xielu = {make("alpha_p", std::log(std::expm1(kSlope)), true),
           make("alpha_n", std::log(std::expm1(kSlope - kBeta)), true), make("beta", kBeta, false),
           make("eps", -1e-6, false)};
}

void Mlp::params(std::vector<Param*>& list) {
  fc1.params(list);
  if (xielu) {
    list.insert(list.end(), {&xielu->alpha_p, &xielu->alpha_n, &xielu->beta, &xielu->eps});
  }
  fc2.params(list);
}

void Mlp::linears(std::vector<Linear*>& list) { list.insert(list.end(), {&fc1, &fc2}); }

Var Mlp::forward(Context& ctx, const Var& x, std::int64_t tokens) const {
  const TensorParallel& tp = options.tensor_parallel;
  OffloadScope fc1_part(ctx, OffloadPart::kMlpFc1, x);
  Var up = fc1_part.without(fc1.enter(ctx, x, tokens, tp));
  if (options.gate_multiplier != 1) {
    const std::int64_t inner_size = up.shape()[1] / 2;
    up = scale_column_parts(ctx, up, std::array{inner_size, inner_size},
                            std::array{options.gate_multiplier, 1.0});
  }
  mark_kept(ctx, OffloadPart::kMlpAct, up);
  Var inner =
      xielu ? bev::xielu(ctx, up, {&xielu->alpha_p, &xielu->alpha_n, &xielu->beta, &xielu->eps})
            : activation(ctx, up, options.activation);
  OffloadScope fc2_part(ctx, OffloadPart::kMlpFc2, inner);
  Var out = fc2_part.without(fc2.leave(ctx, inner, tp));
  return options.out_multiplier != 1 ? scaled(ctx, out, options.out_multiplier) : out;
}

}  // namespace bev
