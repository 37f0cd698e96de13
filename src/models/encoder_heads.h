// Heads of an encoder besides its output layer: the transform before that, the pooler, the
// next-sentence head, and a head for labels. They are replicated over tensor-parallel ranks.
//
//   hidden -- transform (dense, activation, norm) -- output layer
//   hidden -- first token -- pooler -- next-sentence head
//   hidden -- first token or mean -- pooler | transform -- labels of a sequence
//   hidden -- transform -- labels of tokens, spans
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/config.h"
#include "nn/linear.h"
#include "ops/sequence_layout.h"

namespace bev {

// Names of parameters.
inline constexpr std::string_view kClassifier = "classifier";
inline constexpr std::string_view kPooler = "pooler.dense";
inline constexpr std::string_view kBinaryHead = "binary_head";
inline constexpr std::string_view kTransform = "lm_head";

class EncoderHeads {
 public:
  explicit EncoderHeads(const ModelConfig& config);

  void params(std::vector<Param*>& list);
  // True if these heads read one row for each sequence, rather than tokens.
  bool labels_sequences() const;

  // hidden [T, H] are final hidden states outside of the tensor-parallel region, of `layout`.
  // The transform, if the model has one: [T, H], placed like hidden.
  Var transformed(Context& ctx, const Var& hidden) const;
  // Pooler of the first token of each sample, [samples, H], replicated over tp. Rows of samples
  // whose first token another context-parallel rank holds have no meaning.
  Var pooled(Context& ctx, const Var& hidden, const SequenceLayout& layout) const;
  // [samples, 2] from pooled().
  Var next_sentence(Context& ctx, const Var& pooled) const;
  // Outputs of the head for labels in training and otherwise: [samples, labels], of rows as in
  // pooled(), or [T, labels], replicated over tp.
  Var labels(Context& ctx, const Var& hidden, const SequenceLayout& layout) const;

 private:
  Var sequence_rows(Context& ctx, const Var& hidden, const SequenceLayout& layout) const;

  EncoderConfig config_;
  std::optional<Linear> transform_;
  std::optional<Norm> transform_norm_;
  std::optional<Linear> pooler_, next_sentence_, classifier_;
};

}  // namespace bev
