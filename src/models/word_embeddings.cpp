#include "models/word_embeddings.h"

#include "ops/collective.h"
#include "ops/embedding.h"

namespace bev {

Param embedding_param(const char* name, std::int64_t rows, const ModelConfig& config, bool split) {
  Param param;
  param.name = name;
  param.shape = {rows, config.hidden_size};
  if (split) param.split = {Axis::kTp, 0, {}};
  param.init = {InitKind::kNormal, config.init_method_std};
  return param;
}

WordEmbeddings::WordEmbeddings(const ModelConfig& config, const StageRange& range,
                               const BuildOptions& options, Param* shared)
    : param_(shared),
      multiplier_(config.embedding_multiplier),
      padding_row_(config.padding_row),
      sequence_parallel_(options.tensor_parallel.sequence_parallel) {
  if (param_ != nullptr || !architecture_of(config).uses_embedding(config, range)) return;
  own_ = embedding_param("embedding.word_embeddings.weight", config.vocab_size, config, true);
  param_ = &*own_;
  param_->shared = options.shared_embedding;
  param_->copy = !range.first;
  param_->uses = 0;
}

void WordEmbeddings::add_uses(int count) {
  if (count > 0) param_->uses += count;
}

void WordEmbeddings::params(std::vector<Param*>& list) {
  if (own_) list.push_back(&*own_);
}

Var WordEmbeddings::look_up(Context& ctx, const Tensor& tokens) const {
  Var partial = embedding(ctx, tokens, *param_, {multiplier_, padding_row_}, batch_placement());
  return leave_tensor_parallel(ctx, partial, sequence_parallel_);
}

}  // namespace bev
