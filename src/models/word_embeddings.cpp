#include "models/word_embeddings.h"

#include "models/lora.h"
#include "ops/collective.h"
#include "ops/embedding.h"
#include "ops/linear.h"

namespace bev {

Param embedding_param(const char* name, std::int64_t rows, const ModelConfig& config, bool split) {
  Param param;
  param.name = name;
  param.shape = {rows, config.hidden_size};
  if (split) param.split = {Axis::kTp, 0, {}};
  const bool looked_up = param.name.starts_with("embedding.");
  const double std = config.embedding_init_method_std;
  param.init = {InitKind::kNormal, looked_up && std > 0 ? std : config.init_method_std};
  param.table = true;
  return param;
}

WordEmbeddings::WordEmbeddings(const ModelConfig& config, const StageRange& range,
                               const BuildOptions& options, Param* shared)
    : param_(shared),
      multiplier_(config.embedding_factor()),
      padding_row_(config.padding_row),
      sequence_parallel_(options.tensor_parallel.sequence_parallel) {
  if (param_ != nullptr || !architecture_of(config).uses_embedding(config, range)) return;
  own_ = embedding_param("embedding.word_embeddings.weight", config.vocab_size, config, true);
  param_ = &*own_;
  param_->shared = options.shared_embedding;
  param_->copy = !range.first;
  param_->uses = 0;
  if (!range.first) return;
  for (const LoraRules& rules : lora_rules(config)) {
    for (const AdaptedModule& module : rules.find(*param_)) {
      adapters_.push_back(make_low_rank(*param_, module.spec));
    }
  }
}

void WordEmbeddings::add_uses(int count) {
  if (count > 0) param_->uses += count;
}

void WordEmbeddings::params(std::vector<Param*>& list) {
  if (own_) list.push_back(&*own_);
  for (LowRank& adapter : adapters_) adapter.params(list);
}

Var WordEmbeddings::look_up(Context& ctx, const Tensor& tokens) const {
  auto rows_of = [&](const Param& table) {
    Var partial = embedding(ctx, tokens, table, {multiplier_, padding_row_}, batch_placement());
    return leave_tensor_parallel(ctx, partial, sequence_parallel_);
  };
  Var out = rows_of(*param_);
  if (!ctx.adapters) return out;
  for (const LowRank& adapter : adapters_) {
    if (!has_rows(ctx, adapter)) continue;
    Var inner = in_own_rows(ctx, adapter, rows_of(adapter.a));
    out = add_linear(ctx, out, inner, adapter.b, {adapter.scale, 0});
  }
  return out;
}

}  // namespace bev
