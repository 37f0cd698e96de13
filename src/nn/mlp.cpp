#include "nn/mlp.h"

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
      fc2(row_linear({name + ".linear_fc2", o.hidden_size, o.ffn_size, o.bias, o.down_init_std})) {}

void Mlp::params(std::vector<Param*>& list) {
  fc1.params(list);
  fc2.params(list);
}

void Mlp::linears(std::vector<Linear*>& list) { list.insert(list.end(), {&fc1, &fc2}); }

Var Mlp::forward(Context& ctx, const Var& x, std::int64_t tokens) const {
  const TensorParallel& tp = options.tensor_parallel;
  return fc2.leave(ctx, activation(ctx, fc1.enter(ctx, x, tokens, tp), options.activation), tp);
}

}  // namespace bev
