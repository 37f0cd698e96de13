#include "models/mtp.h"

#include "autograd/recompute.h"
#include "base/text.h"
#include "ops/elementwise.h"

namespace bev {

namespace {

std::string part_name(std::int64_t depth, const char* part) {
  return concat("mtp.layers.", depth, ".", part);
}

Norm depth_norm(const ModelConfig& config, std::int64_t depth, const char* part) {
  return make_norm(part_name(depth, part), config.hidden_size, norm_options(config));
}

}  // namespace

MtpLayer::MtpLayer(const ModelConfig& config, std::int64_t depth, const BuildOptions& options)
    : embedding_norm_(depth_norm(config, depth, "enorm")),
      hidden_norm_(depth_norm(config, depth, "hnorm")),
      projection_(whole_linear({part_name(depth, "eh_proj"), config.hidden_size,
                                2 * config.hidden_size, false, config.init_method_std})),
      layer_(config, decoder_layer(config, config.num_layers + depth), config.num_layers + depth,
             options, part_name(depth, "transformer_layer")),
      final_norm_(depth_norm(config, depth, "final_layernorm")),
      recompute_(options.recompute.layers_per_unit > 0),
      fp32_residual_(config.fp32_residual_connection) {
  std::vector<Param*> all;
  params(all);
  set_unit(all, concat("mtp.layers.", depth));
}

void MtpLayer::params(std::vector<Param*>& list) {
  embedding_norm_.params(list);
  hidden_norm_.params(list);
  projection_.params(list);
  layer_.params(list);
  final_norm_.params(list);
}

Var MtpLayer::forward(Context& ctx, const Var& hidden, const Var& embedded,
                      const LayerInput& input) const {
  Var both = join_columns(ctx, norm(ctx, embedded, embedding_norm_.spec(false)),
                          norm(ctx, hidden, hidden_norm_.spec(false)));
  Var x = convert(ctx, projection_.forward(ctx, both), fp32_residual_ ? ctx.wide() : ctx.dtype);
  auto run = [this, input](Context& to, const Var& from) {
    return layer_.forward(to, from, input);
  };
  Var y = recompute_ ? recompute(ctx, "recompute layers", x, run) : run(ctx, x);
  return norm(ctx, y, final_norm_.spec(false));
}

}  // namespace bev
