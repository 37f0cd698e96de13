#include "models/encoder_heads.h"

#include <string>

#include "base/error.h"
#include "models/layer.h"
#include "ops/collective.h"
#include "ops/elementwise.h"
#include "ops/sequence_rows.h"

namespace bev {

namespace {
Linear dense(const ModelConfig& config, std::string_view name, std::int64_t out, bool bias) {
  return whole_linear({.name = std::string(name),
                       .out = out,
                       .in = config.hidden_size,
                       .bias = bias,
                       .std = config.init_method_std});
}
}  // namespace

EncoderHeads::EncoderHeads(const ModelConfig& config) : config_(config.encoder) {
  const std::int64_t hidden = config.hidden_size;
  if (config_.transform) {
    transform_ = dense(config, concat(kTransform, ".dense"), hidden, config_.transform_bias);
    transform_norm_ = make_norm(concat(kTransform, ".layer_norm"), hidden, norm_options(config));
  }
  if (config_.pooler) pooler_ = dense(config, kPooler, hidden, true);
  if (config_.next_sentence) next_sentence_ = dense(config, kBinaryHead, 2, true);
  if (config_.labels != LabelKind::kNone) {
    classifier_ = dense(config, kClassifier, config.num_labels, true);
  }
}

void EncoderHeads::params(std::vector<Param*>& list) {
  for (std::optional<Linear>* linear : {&transform_, &pooler_, &next_sentence_, &classifier_}) {
    if (*linear) (*linear)->params(list);
  }
  if (transform_norm_) transform_norm_->params(list);
}

bool EncoderHeads::labels_sequences() const { return config_.labels == LabelKind::kSequence; }

Var EncoderHeads::transformed(Context& ctx, const Var& hidden) const {
  if (!transform_) return hidden;
  Var x = activation(ctx, transform_->forward(ctx, hidden), {config_.transform_activation});
  return norm(ctx, x, transform_norm_->spec(false));
}

Var EncoderHeads::pooled(Context& ctx, const Var& hidden, const SequenceLayout& layout) const {
  BEV_CHECK(pooler_.has_value(), ErrorKind::kConfig, "the model has no pooler");
  Var first = first_tokens(ctx, gather_tokens(ctx, hidden, layout.tokens), layout);
  return activation(ctx, pooler_->forward(ctx, first), {Activation::kTanh});
}

Var EncoderHeads::next_sentence(Context& ctx, const Var& pooled) const {
  return next_sentence_->forward(ctx, pooled);
}

// What the labels of sequences are computed from, [samples, H].
Var EncoderHeads::sequence_rows(Context& ctx, const Var& hidden,
                                const SequenceLayout& layout) const {
  if (pooler_) return pooled(ctx, hidden, layout);
  Var all = gather_tokens(ctx, hidden, layout.tokens);
  Var rows = config_.label_pooling == LabelPooling::kMean ? mean_tokens(ctx, all, layout)
                                                          : first_tokens(ctx, all, layout);
  return transformed(ctx, rows);
}

Var EncoderHeads::labels(Context& ctx, const Var& hidden, const SequenceLayout& layout) const {
  if (labels_sequences()) return classifier_->forward(ctx, sequence_rows(ctx, hidden, layout));
  Var rows = gather_tokens(ctx, transformed(ctx, hidden), layout.tokens);
  return classifier_->forward(ctx, rows);
}

}  // namespace bev
